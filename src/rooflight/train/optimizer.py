# pyright: reportMissingTypeStubs=false
# optax annotates its own functions only in part.
"""The optimizer of a run, by Optax: clip, AdamW, warm-up and cosine."""

from typing import Any

import optax

from rooflight.program.model.forward import Program
from rooflight.program.model.params import TensorSpec, Tree, map_specs
from rooflight.train.run import Run


def make_optimizer(run: Run, program: Program) -> optax.GradientTransformation:
    """What `Run.optimizer` says; decay is for matrices."""
    told = run.optimizer
    rate = optax.warmup_cosine_decay_schedule(
        0.0,
        told.learning_rate,
        min(told.warmup_steps, run.steps),
        max(run.steps, told.warmup_steps + 1),
        told.learning_rate * told.final_share,
    )

    def decays(_: Any) -> Tree:
        return map_specs(_is_matrix, program.specs)

    return optax.chain(
        optax.clip_by_global_norm(told.clip),
        optax.adamw(rate, told.b1, told.b2, weight_decay=told.weight_decay, mask=decays),
    )


def _is_matrix(spec: TensorSpec) -> bool:
    return len(spec.tensor.dims) > 1
