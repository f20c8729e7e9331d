"""Programs with open shapes: one plan for each set of shapes, and stages where shapes come late."""
