"""The space of layouts, and the search that prices all of it."""
