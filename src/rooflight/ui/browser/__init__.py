"""The explorer: views, each a question with its answer as data."""
