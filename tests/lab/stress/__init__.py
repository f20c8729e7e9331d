"""`python -m lab.stress`: seeded parts that try to break the engine, each case replayable alone."""
