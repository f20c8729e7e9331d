"""Sessions: a model opened on devices, and the runner that serves its runs."""
