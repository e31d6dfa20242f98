"""How many replicas of which layout serve a load within its SLO."""
