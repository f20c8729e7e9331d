"""What every room uses and that knows no graph: errors, dtypes, locks, files, caches."""
