"""Post-training quantisation: a float graph and sample inputs become a graph of integers."""
