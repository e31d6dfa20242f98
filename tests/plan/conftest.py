"""Keeps the worker out of collection: it sets up jax for its own process."""

collect_ignore_glob = ["*_worker.py"]
