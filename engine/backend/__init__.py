"""The contract of a device, the registry of devices, kernel tables, and arenas."""
