"""Seconds of nodes and copies on each device, from descriptions and measured curves."""
