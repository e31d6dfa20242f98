"""The JAX program of a layout. The first layer that imports jax."""
