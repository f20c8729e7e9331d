"""Parallel forms of a graph: nodes split over devices, batches sharded, runs pipelined."""
