"""A link-level simulator of collectives; it knows nothing of the cost formulas."""
