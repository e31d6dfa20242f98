"""The scheduler of `batching` drives compiled steps of `program`."""
