"""The model as contractions over named dims: one graph, off which everything is counted."""
