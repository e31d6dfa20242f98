"""Runs of one's own: planned, compiled, measured, and the causes of the gap."""
