"""The worker pool and the servers: who runs a program's steps, on which cores, in native code.

native is the code that they run, written by loops, chunks and jobs; pool and server own threads.
"""
