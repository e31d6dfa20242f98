"""How long a training step will take: the parts of the roofline under fitted constants."""
