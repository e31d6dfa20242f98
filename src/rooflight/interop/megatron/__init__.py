"""Megatron-LM: a plan as a launch script, and launch scripts as parts of a plan."""
