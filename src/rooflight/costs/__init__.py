"""Seconds and bytes: rooflines of local ops, network time of collectives, choice of strategies."""
