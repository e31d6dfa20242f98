"""An engine behind HTTP: OpenAI's API with bounds on everything, keys, limits, health, metrics."""
