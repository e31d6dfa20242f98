"""Verbs of models and training plans."""
