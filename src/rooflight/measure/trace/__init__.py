"""Traces of JAX's profiler, read without TensorBoard and JAX: where the time of a step went."""
