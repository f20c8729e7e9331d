"""Programs that measure, one a module: each prints a table for a page of docs/experiments."""
