"""Bytes on one chip: what frameworks hold, recipes and remat policies."""
