"""The search finds what trying everything finds, and never what cannot be."""

import random
from itertools import pairwise

import pytest

from rooflight.costs.sweep import every_mesh
from rooflight.dtypes import DTYPES
from rooflight.graph import model_graph
from rooflight.plan.search import (
    Candidate,
    Question,
    exact_candidate,
    search_training,
    space,
)
from rooflight.specs import load_model, parse_mesh, parse_slice

BF16 = DTYPES["bf16"]


def ask(model: str, on: str, batch: int, seq: int) -> Question:
    return Question(model_graph(load_model(model)), parse_slice(on), batch, seq, BF16)


def brute_force(question: Question) -> float:
    """The fastest of all layouts, each derived for its own mesh."""
    times: list[float] = []
    for layout, meshes in space(question):
        for index in range(meshes.count):
            candidate = exact_candidate(question, layout, meshes.mesh(index))
            if candidate:
                times.append(candidate.time.expected_s(question.overlap))
    return min(times)


@pytest.mark.parametrize("seed", range(6))
def test_the_search_agrees_with_trying_everything(seed: int) -> None:
    rng = random.Random(seed)
    model = rng.choice(["llama3-8b", "mixtral-8x7b", "qwen3-8b"])
    on = rng.choice(["v5e:4x4", "v5e:2x4", "v6e:4x2", "h100:8x2"])
    question = ask(model, on, rng.choice([16, 64]), rng.choice([512, 4096]))
    best = search_training(question).candidates[0]
    assert best.time.expected_s() <= 1.001 * brute_force(question)  # a thousandth is a tie


def test_a_pod_with_odd_axes_gives_them_to_data_parallelism() -> None:
    """5 and 7 divide no width of the model, so the axes of 20 and 28 must split sequences."""
    found = search_training(ask("llama3-70b", "v5p:16x20x28", 2240, 4096), count=3)
    assert found.num_named > 20_000
    for candidate in found.candidates:
        data = candidate.mesh.size("Z") * candidate.mesh.size("X")
        assert data % 35 == 0 and 2240 % data == 0
        assert candidate.time.mfu() > 0.95


def test_what_does_not_fit_is_never_reported() -> None:
    question = ask("llama3-8b", "v5e:4x4", 16, 4096)

    def two_axes(candidate: Candidate) -> Candidate | None:
        return candidate if len(candidate.mesh.axes) == 2 else None

    found = search_training(question, settle=two_axes)
    assert found.num_unfit > 0
    assert all(len(c.mesh.axes) == 2 for c in found.candidates)


def test_the_candidates_come_in_order_and_differ() -> None:
    found = search_training(ask("llama3-8b", "v5p:4x4x4", 64, 512)).candidates
    times = [c.time.expected_s() for c in found]
    assert all(a <= b * 1.001 for a, b in pairwise(times))
    assert len({(c.layout.text, tuple(sorted(c.mesh.axes.items()))) for c in found}) == len(found)


@pytest.mark.parametrize("on", ["v5p:16x20x28", "2*v5e:8x16", "h100:8x64"])
def test_a_mesh_is_printed_so_that_it_can_be_typed_back(on: str) -> None:
    meshes = every_mesh(("Z", "X", "Y"), parse_slice(on))
    for index in random.Random(0).sample(range(meshes.count), 60):
        mesh = meshes.mesh(index)
        again = parse_mesh(str(mesh), on=on)
        assert {a: again.group([a]) for a in "XYZ"} == {a: mesh.group([a]) for a in "XYZ"}
