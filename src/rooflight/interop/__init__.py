"""Plans in the words of other frameworks, and their configurations as parts of a plan."""
