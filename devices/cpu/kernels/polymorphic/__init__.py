"""Rules of kernels that one compile makes for every shape."""
