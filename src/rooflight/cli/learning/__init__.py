"""Verbs for readers."""
