"""Dataflow primitives: control flow as tokens that meet in Switch, Merge, Enter, Exit and more."""
