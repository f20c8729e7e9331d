"""Programs with open shapes: sizes of a call, stages where shapes come late, instances."""
