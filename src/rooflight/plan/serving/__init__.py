"""Serving: the time and memory of prefill and generate steps, and what is read off them."""
