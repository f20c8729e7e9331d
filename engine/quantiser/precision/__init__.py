"""Precision placed by cost: which nodes stay float is decided together with where they run."""
