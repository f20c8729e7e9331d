"""Passes: each a pure function Graph -> Graph with a name and a switch."""
