"""Errors, dtypes, locks, files and caches: the room that every other room uses. It knows no
graph.
"""
