"""A front for several servers."""
