"""Layers, loss and parameters of the JAX program."""
