"""Penalties and biases on the device are those of OpenAI and transformers, under any schedule."""

from typing import Any  # JSON

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from engine_process import report

from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.request import MOST_BIASES
from rooflight.serve.engine.step_function import Packed, SlotState, adjusted_logits

ROWS, VOCAB, HISTORY = 3, 50, 16
WORKER = "engine_penalties_worker.py"


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def ours(
    logits: Any, history: Any, lengths: Any, prompts: Any, penalties: Any, biases: dict[int, float]
) -> Any:
    """Adjusted logits of rows, which lie in the state in another order."""
    order = [2, 0, 1]
    fields = np.zeros((ROWS, Packed.COUNT), np.int32)
    state = np.zeros((ROWS + 1, HISTORY), np.int32)
    added = np.zeros((ROWS + 1, 2, MOST_BIASES), np.int32)
    for i, row in enumerate(order):
        state[row] = history[i]
        fields[i, Packed.ROW], fields[i, Packed.PROMPT] = row, prompts[i]
        names = (Packed.PRESENCE, Packed.FREQUENCY, Packed.REPETITION)
        for name, value in zip(names, penalties, strict=True):
            fields[i, name] = bits(value)
        for at, (token, bias) in enumerate(biases.items()):
            added[row, :, at] = token, bits(bias)
    masks = tokens = np.zeros(ROWS + 1, np.int32)
    with jax.set_mesh(device_mesh({"X": 1})):
        packed = SlotState(*(jax.numpy.asarray(x) for x in (tokens, masks, state, added)))
        run = jax.jit(adjusted_logits)
        return np.asarray(run(logits[:, None], packed, fields, np.asarray(lengths)))[:, 0]


@pytest.mark.parametrize("seed", range(5))
def test_logits_are_adjusted_as_by_transformers_and_openai(seed: int) -> None:
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((ROWS, VOCAB)).astype(np.float32)
    history = rng.integers(0, VOCAB // 3, (ROWS, HISTORY))  # some come often
    lengths, prompts = [16, 9, 5], [4, 9, 1]
    presence, frequency = rng.uniform(-2, 2, 2)
    repetition, biases = rng.uniform(0.5, 2), {3: 7.5, 40: -100.0, 0: 0.25}
    found = ours(logits, history, lengths, prompts, (presence, frequency, repetition), biases)
    process = transformers.RepetitionPenaltyLogitsProcessor(float(repetition))
    for i, length in enumerate(lengths):
        ids = torch.tensor(history[i : i + 1, :length])
        wanted = process(ids, torch.tensor(logits[i : i + 1])).numpy()[0].copy()
        made = np.bincount(history[i, prompts[i] : length], minlength=VOCAB)
        wanted -= made * frequency + (made > 0) * presence
        for token, bias in biases.items():
            wanted[token] += bias
        np.testing.assert_allclose(found[i], wanted, rtol=1e-5, atol=1e-5)


def test_a_row_without_penalties_keeps_its_logits_to_the_bit() -> None:
    logits = np.random.default_rng(0).standard_normal((ROWS, VOCAB)).astype(np.float32)
    history = np.zeros((ROWS, HISTORY), np.int64)
    found = ours(logits, history, [5] * 3, [2, 0, 0], (1, 1, 2), {1: 5.0})
    assert np.array_equal(found[1:], logits[1:]) and not np.array_equal(found[0], logits[0])


def test_an_engine_draws_by_the_formula_under_any_schedule() -> None:
    found = dict(report(WORKER))
    bare = found.pop("bare")
    assert found["tight"]["preemptions"] > 0
    for name, engine in found.items():
        assert engine["compilations"] == 0, name
        assert engine["worst"] < 2e-3 and engine["other"] == 0, name
        assert engine["tokens"] == found["roomy"]["tokens"], name
        changed = [a != b for a, b in zip(engine["tokens"], bare, strict=True)]
        assert changed == [True, True, True, False, True, True, True]


@pytest.mark.alone
def test_steps_without_penalties_take_the_time_they_took() -> None:
    without, unused = report("engine_unused_worker.py")
    assert unused < 1.1 * without
