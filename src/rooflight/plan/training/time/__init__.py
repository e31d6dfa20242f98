"""Seconds of a step at the roofline: stages, bubbles, collectives; one layout, or all at once."""
