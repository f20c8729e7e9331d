"""A placement as tasks: their order, their waits, and the memory of their values."""
