"""Generation: caches, steps, sampling."""
