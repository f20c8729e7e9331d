"""A placement as tasks: what runs when, what it waits for, where values live."""
