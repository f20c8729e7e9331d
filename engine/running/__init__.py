"""How a session runs its tasks: serially, in parallel or watched; its ports, copies and traces."""
