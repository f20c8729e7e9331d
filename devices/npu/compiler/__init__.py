"""From a graph to a command stream: lowering, tiles, residency, barriers."""
