"""Kernels: what lowers a node to steps, and what writes the code of each step."""
