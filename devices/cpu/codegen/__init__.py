"""From what a kernel does to its machine code in memory: for any kernel, whatever it computes.

ir and mathfn write LLVM IR for a target; emit makes object code of it; link and jit load that.
"""
