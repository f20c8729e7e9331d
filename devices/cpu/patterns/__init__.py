"""Nodes that become one kernel: attention, and float ops on int8 weights."""
