# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# MaxText is in another environment, and jax annotates its own functions only in part.
"""MaxText's training step for a slice that is not there: what its `train_compile` compiles.

A child of `rooflight.compile` runs it in an environment that has MaxText, and not this package.
In: settings over MaxText's base.yml. Out: its jitted step and the abstract arguments, on the mesh
that MaxText makes of its `compile_topology`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any  # of MaxText

import jax
from jax.experimental import xla_metadata

_MAIN = "maxtext.trainers.pre_train.train_compile"


@dataclass(frozen=True)
class MaxTextStep:
    """Lowers under MaxText's mesh and its rules of logical axes."""

    jitted: Any
    mesh: Any
    rules: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.jitted(*arguments)

    def lower(self, *arguments: Any) -> Any:
        with jax.set_mesh(self.mesh), self.rules:
            return self.jitted.lower(*arguments)


def build(_mesh: Any, *, settings: Mapping[str, object]) -> tuple[MaxTextStep, tuple[Any, ...]]:
    """What `CompileRequest.build` names; the same calls as `train_compile.main`."""
    if not hasattr(xla_metadata, "must_fuse_call"):  # of a newer jax; unused by splash attention
        setattr(xla_metadata, "must_fuse_call", None)  # noqa: B010
    their: Any = import_module(_MAIN)
    config = their.pyconfig.initialize(
        ["", _base(), *(f"{k}={_text(settings[k])}" for k in settings)]
    )
    mesh = their.get_topology_mesh(config)
    jax.set_mesh(mesh)
    arguments, _, shardings, _, model = their.get_shaped_inputs(mesh, config)
    params, shardings = their.sharding.maybe_update_params_sharding_with_opt(config, shardings)
    given = their.sharding.build_zero1_input_state_mesh_shardings(config, shardings, params)
    data = their.sharding.get_input_data_sharding(config, mesh)
    step, inputs, outputs, static, donated = (
        their.maxtext_utils.get_functional_train_with_signature(
            their.train.train_step, data, given, model, config, params
        )
    )
    jitted = jax.jit(
        step,
        in_shardings=inputs,
        out_shardings=outputs,
        static_argnums=static,
        donate_argnums=donated,
    )
    return MaxTextStep(jitted, mesh, their.axis_rules(config.logical_axis_rules)), arguments


def _base() -> str:
    file: str = import_module("maxtext").__file__ or ""
    return str(Path(file).parent / "configs" / "base.yml")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
