"""Requests through the scheduler under a virtual clock."""
