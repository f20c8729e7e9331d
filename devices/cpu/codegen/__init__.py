"""Turn kernels into machine code in memory, whatever they compute.

ir and mathfn write LLVM IR for a target; emit makes object code of it; link and jit load that.
"""
