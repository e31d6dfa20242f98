"""Training that survives: the loop, its data, checkpoints, and a supervisor."""
