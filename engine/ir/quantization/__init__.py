"""The report of a quantisation, which a quantised graph carries, also in a file."""
