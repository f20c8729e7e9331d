"""Calls that wait: requests with deadlines, batches, and runs on arrays that stay."""
