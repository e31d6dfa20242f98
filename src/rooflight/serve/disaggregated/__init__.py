"""Prefill on one engine, decode on another."""
