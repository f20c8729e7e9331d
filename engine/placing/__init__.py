"""How `place` decides: the problem as numbers, starts, searches, bounds, proofs and prices."""
