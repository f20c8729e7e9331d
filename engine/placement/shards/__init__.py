"""Nodes sharded over several devices, and batches."""
