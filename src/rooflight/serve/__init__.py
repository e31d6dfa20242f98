"""Serving: the engine, HTTP, disaggregated prefill, the router."""
