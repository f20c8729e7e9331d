"""Nodes split over several devices, and batches."""
