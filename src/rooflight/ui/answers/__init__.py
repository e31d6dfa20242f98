"""Answers as data, one builder for every medium."""
