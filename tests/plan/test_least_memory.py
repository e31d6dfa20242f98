"""What a search leaves out unseen does not fit."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rooflight.dtypes import DTYPES
from rooflight.errors import ShardingError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.least import LeastMemory
from rooflight.plan.training.search.cache import every_point
from rooflight.plan.training.search.candidate import held_by
from rooflight.plan.training.search.options import allowed_on, options_of
from rooflight.plan.training.search.plan import train_question
from rooflight.plan.training.search.run import cache_of, layouts_of, sizes_of

MODELS = ("llama3-8b", "deepseek-v2-lite", "gpt-oss-20b")
PAIRS = [*product(MODELS, ("megatron", "torchtitan", "maxtext", "rooflight"))]


# Every day each framework and each model.
@pytest.mark.parametrize(
    ("model", "framework"),
    [pytest.param(*p, marks=pytest.mark.full if i % 3 else ()) for i, p in enumerate(PAIRS)],
)
def test_least_memory_is_a_bound(model: str, framework: str) -> None:
    graph = model_graph(load_model(model))
    on = parse_slice("v5p:2x4x4" if framework in ("maxtext", "rooflight") else "h100:8x4")
    question = train_question(graph, on, 64, 2048, DTYPES["bf16"], framework=framework)
    sizes, ground, chance = sizes_of(question), cache_of(question), random.Random(0)
    checked = 0
    for layout in layouts_of(question):
        for points in every_point(question, sizes, ground.placed(layout)):
            if not len(points):
                continue
            least = LeastMemory(points, question.recipe, question.framework)
            micro, remat = chance.choice(list(options_of(layout, question)))
            nbytes = least.bytes(micro, remat)
            for at in np.flatnonzero(allowed_on(micro, points, question))[:: len(points) // 3 + 1]:
                counted = replace(micro, count=int(points.count[at]))
                mesh = points.meshes.mesh(int(points.mesh_of[at]))
                try:
                    held = held_by(question, layout, mesh, counted, remat)
                except ShardingError:
                    continue
                checked += 1
                assert nbytes[at] <= held.total_bytes * (1 + 1e-9), (layout.text, counted, remat)
    assert checked > 20
