"""Executes every product of a layer under each layout on fake devices, and compares with numpy.

Run as a process of its own: `python layout_worker.py SEED LAYOUT...`. Prints one JSON object.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace

import derivation_worker as oracle  # before jax: it asks for the fake devices
import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from rooflight.algebra.notation import Contraction, Tensor
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import HAS_FLOPS
from rooflight.models.layout.rules import Layout, parse_layout
from rooflight.models.presets import load_model

GRAPH = model_graph(load_model("llama3-8b"))
WEIGHTS = {p.tensor.name for p in GRAPH.params}


def placed(tensor: Tensor, layout: Layout) -> Tensor:
    """Where the layout keeps a tensor; keys have dim S where they are read, T where written."""
    if tensor.name in WEIGHTS:
        return layout.of_weight(tensor)
    if "T" in tensor.dims:
        return layout.of_activation(tensor)
    written = replace(tensor, dims=tuple("T" if d == "S" else d for d in tensor.dims))
    return replace(tensor, axes=layout.of_activation(written).axes)


def matmuls(layout: Layout) -> Iterator[Contraction]:
    for op in GRAPH.ops:
        if op.kind in HAS_FLOPS and op.block == 0:
            operands = tuple(placed(t, layout) for t in op.contraction.operands)
            yield Contraction(operands, placed(op.contraction.result, layout))


def main(seed: int, texts: list[str]) -> oracle.Tally:
    rng, tally = random.Random(seed), oracle.Tally()
    for text in texts:
        layout = parse_layout(text)
        sizes = dict.fromkeys(layout.split_over, 2)
        side = 2 ** len(sizes)
        devices = np.array(jax.devices()[:side]).reshape(tuple(sizes.values()))
        mesh = Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
        cases: list[oracle.Case] = []
        for contraction in matmuls(layout):
            arrays = oracle.arrays_of(rng, contraction.operands, sizes, side)
            cotangent = oracle.draw(rng, [side] * len(contraction.result.dims))
            cases.append(oracle.Case(contraction, arrays, list(arrays), cotangent))
        oracle.differentiate(cases)
        programs = [p for case in cases for p in oracle.programs_of(case, sizes)]
        oracle.run(programs, mesh, tally)
        tally.cases += len(cases)
    return tally


if __name__ == "__main__":
    print(json.dumps(vars(main(int(sys.argv[1]), sys.argv[2:]))))
