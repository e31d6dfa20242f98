"""Models by their sizes, as contractions over named dims, and the layouts that split them."""
