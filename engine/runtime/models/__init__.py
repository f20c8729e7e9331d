"""A model made ready: prepared, stored and loaded again, tuned, and run on without a device."""
