"""Pages that stand alone."""
