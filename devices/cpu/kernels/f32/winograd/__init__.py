"""Convolutions with small square kernels by Winograd's minimal filtering.

plan says where it pays, conv lowers a node, kernel writes the code, transforms has the matrices.
open_conv makes the variants of a conv whose sizes vary.
"""
