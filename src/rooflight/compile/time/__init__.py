"""Seconds of a compiled step."""
