"""Predictions held against published measurements, and constants fitted to them."""
