"""The parts of a forward pass that no other program is held against."""

from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

import jax
import numpy as np
from program_cases import BATCH, MODELS, SEQ, VOCAB, alone

from rooflight.errors import UnknownNameError, UsageError
from rooflight.models.presets import load_model
from rooflight.models.spec import Attention, Block, Mlp, Moe, Repeat
from rooflight.program.model.experts import num_places
from rooflight.program.model.forward import Program, remat_policy
from rooflight.program.model.loss import cross_entropy, logits
from rooflight.program.model.params import Tree, map_specs
from rooflight.program.shardings import device_mesh


def weights_of(program: Program) -> Tree:
    rng = np.random.default_rng(1)
    return map_specs(lambda s: 0.2 * rng.standard_normal(s.shape, np.float32), program.specs)


def loss_of(program: Program) -> float:
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, VOCAB, (BATCH, SEQ)) for _ in range(2))
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        params = weights_of(program)
        rows = tokens, targets, np.ones((BATCH, SEQ), np.float32)
        return float(jax.jit(partial(cross_entropy, program))(params, *rows))


def test_the_loss_in_chunks_is_that_of_all_logits_at_once() -> None:
    program = Program(MODELS["pattern"], alone("pattern").constraints, loss_chunk=48)
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, VOCAB, (BATCH, SEQ)) for _ in range(2))
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        params = weights_of(program)
        found = np.asarray(jax.jit(partial(logits, program))(params, tokens), np.float64)
    top = found.max(-1, keepdims=True)
    total = np.log(np.exp(found - top).sum(-1)) + top[..., 0]
    wanted = (total - np.take_along_axis(found, targets[..., None], -1)[..., 0]).sum()
    assert loss_of(program) == pytest.approx(wanted, rel=1e-6)


def test_experts_with_too_few_places_drop_tokens_and_with_enough_none() -> None:
    constraints, model = alone("moe").constraints, MODELS["moe"]
    whole = loss_of(Program(model, constraints))
    assert loss_of(Program(model, constraints, capacity=16.0)) == pytest.approx(whole, rel=1e-6)
    assert loss_of(Program(model, constraints, capacity=0.5)) != pytest.approx(whole, rel=1e-6)


def test_places_are_whole_and_never_more_than_tokens() -> None:
    moe = Moe(8, 2, Mlp(64))
    assert num_places(moe, 10, 1.0) == 3
    assert num_places(moe, 10, 100.0) == num_places(moe, 10, None) == 10


def test_a_policy_that_names_no_tensor_of_the_model_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="frobnicated"):
        remat_policy("q+frobnicated", load_model("llama3-8b"))


def test_a_model_with_other_positions_is_refused() -> None:
    alibi = Block(Attention(8, 4, 8, rope=None, has_alibi=True), Mlp(64))
    model = replace(MODELS["dense"], layers=(Repeat((alibi,), 2),))
    with pytest.raises(UsageError, match="ALiBi"):
        Program(model, alone("dense").constraints)
