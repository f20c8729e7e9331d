"""A device for every node: the problem, the search, bounds, shards, reasons and the lockfile."""
