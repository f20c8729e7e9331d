"""Kernels on 8-bit integers, exact to the last bit: products of matrices, depthwise, elementwise.

linear, depthwise, sum, elementwise, reduce: the lowerings
shapes, pack, prepare, columns: what they read, and how it lies in memory
ways, split, update, arithmetic: dot products as an instruction set has them
epilogue, requant, fit, dequant: from 32-bit sums to what is stored
"""
