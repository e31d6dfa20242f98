"""Ahead-of-time compilation in child processes, with a cache."""
