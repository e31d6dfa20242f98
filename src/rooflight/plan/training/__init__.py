"""Which layout trains a model fastest, and what else follows from it."""
