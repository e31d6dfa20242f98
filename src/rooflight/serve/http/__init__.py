"""An engine behind OpenAI's API."""
