"""Rooflight: plan, program, verify, run and measure large-model layouts.

The public names live in the rooms: `rooflight.hardware` (chips, slices, meshes), `rooflight.models`
(models, and as contractions in `models.graph`), `rooflight.algebra` (sharding notation and its
rules), `rooflight.costs` (seconds and bytes; `costs.netsim` simulates links), `rooflight.plan`
(what to run), `rooflight.book` (the book's numbers, replayed), `rooflight.program` (needs jax).
"""

__version__ = "0.1.0"
