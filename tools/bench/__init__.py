"""`trireme bench`: side by side with other runtimes, in every mode, and against single devices.

command: the options, and which comparison is made
match, process, worker, peers: engines in processes of their own, one model at a time
model, agree: a model file with another batch; whether two engines' outputs agree
modes, singles, turns: programs of this engine that take turns in one process
result, report: what was measured, and the tables
"""
