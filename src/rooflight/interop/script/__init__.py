"""Shell scripts, read and never run: what they set, and the programs they would start."""
