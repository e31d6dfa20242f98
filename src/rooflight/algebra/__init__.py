"""The sharding algebra: notation, reshards, contractions and their reverse mode.

Shardings in, lists of steps out. It enumerates; `rooflight.costs` prices and chooses.
"""
