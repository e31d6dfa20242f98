"""Experts: routing, exchange and grouped matmuls."""
