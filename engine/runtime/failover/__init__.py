"""Faults while a session runs: the run goes to the devices that are left."""
