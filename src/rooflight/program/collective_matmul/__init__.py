"""Matmuls that overlap with the collectives they wait for."""
