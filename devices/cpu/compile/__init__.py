"""A region as one program: fusion, buffers, executables and their cost."""
