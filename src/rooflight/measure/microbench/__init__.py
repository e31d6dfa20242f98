"""This machine as a chip."""
