"""Verbs of chips, slices, matmuls and collectives."""
