"""Which mesh axes split which dims; pipeline schedules as tables."""
