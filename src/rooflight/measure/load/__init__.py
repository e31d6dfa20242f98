"""Open-loop load for any OpenAI-compatible server."""
