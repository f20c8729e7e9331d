"""A plan with code on memory: programs, contexts, and the way of inputs and outputs."""
