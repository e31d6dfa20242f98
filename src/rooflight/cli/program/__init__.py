"""Verbs of programs: compiled, read, exported, imported."""
