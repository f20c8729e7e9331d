"""Kernels on float32."""
