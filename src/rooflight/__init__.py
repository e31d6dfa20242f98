"""Rooflight: plan, program, verify, run and measure large-model layouts.

The public names live in the layers: `rooflight.specs` (hardware), `rooflight.algebra` (sharding
notation and its rules), `rooflight.graph` (models as contractions, layouts), `rooflight.costs`
(seconds and bytes), `rooflight.plan` (what to run), `rooflight.netsim` (a link-level simulator),
`rooflight.book` (the book's numbers, replayed), `rooflight.program` (needs jax).
"""

__version__ = "0.1.0"
