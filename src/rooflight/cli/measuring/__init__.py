"""Verbs of what happened: load, traces, runs, published rows."""
