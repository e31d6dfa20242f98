"""Attention over pages of the KV cache."""
