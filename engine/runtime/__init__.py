"""A plan as a program, and what runs it: contexts, I/O binding, executors, sessions."""
