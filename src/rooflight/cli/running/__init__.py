"""Verbs that run: training, checkpoints, servers."""
