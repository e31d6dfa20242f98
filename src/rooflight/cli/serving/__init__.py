"""Verbs of serving plans."""
