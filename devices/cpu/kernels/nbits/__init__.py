"""Products of float32 with weights of a few bits."""
