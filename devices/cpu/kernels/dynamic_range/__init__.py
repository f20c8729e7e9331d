"""Kernels that round float32 to 8 bits at run time, and their way back."""
