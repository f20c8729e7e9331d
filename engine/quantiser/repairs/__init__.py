"""Repairs: rewrites of a float graph after which its integers are nearer to it."""
