"""Some 300 commands and calls of Python that an older tree of the source answers as well.

By old spellings, which both understand. Nothing of the package is imported until it is asked.
"""

import contextlib
import io
import json
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any  # JSON, and modules of either tree

DUMPS = Path(__file__).parents[1] / "tests" / "verify" / "dumps"
_CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x", "a100", "h100", "h200", "b200", "gb200", "mi300x")
_PODS = ("v5e:4x4", "v5p:4x4x4", "v6e:8x8", "h100:8x2", "b200:8x4")
_MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gemma2-9b", "qwen3-32b")
_SMALL = ("llama3-8b", "gemma2-9b", "mixtral-8x7b")
_JOB = "--batch 512Ki --seq 4096"
_CONTRACTIONS = (
    "A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]",
    "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]",
    "A[I,J_X] * B[J_X,K] -> C[I,K]",
    "A[I,J_X] * B[J_X,K] -> C[I_X,K]",
    "A[I_X,J_Y] * B[J_X,K_Y] -> C[I_X,K_Y]",
    "A[I_XY,J] * B[J,K] -> C[I_XY,K]",
    "A[I_X,J] * B[J,K_X] -> C[I_X,K]",
    "A[I,J] * B[J_X,K_Y] -> C[I,K]",
)
_RESHARDS = (
    ("A[I_X,J]", "A[I,J_X]"),
    ("A[I_X,J_Y]", "A[I,J]"),
    ("A[I_XY,J]", "A[I_X,J_Y]"),
    ("A[I,J]{U_X}", "A[I_X,J]"),
    ("A[I,J]{U_X}", "A[I,J]"),
    ("A[I_Y,J]{U_X}", "A[I,J_X]"),
)
_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
_PROBLEMS = "1.2 1.3 2.2 2.3 2.4 2.6 3.2 3.3 3.4 3.7 3.9 4.4 4.8 5.1 5.2 5.3 5.4 6.1 6.2 12.pq3"
_KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")


def commands() -> Iterator[list[str]]:
    """What is asked, without --json."""
    lines = [
        *("chips", "model", "book", "slice v5e:16x16", "slice h100:8x16"),
        *(f"chips {chip}" for chip in _CHIPS),
        *(f"slice {pod}" for pod in _PODS),
        *(f"roofline --on {c} --dtype {d}" for c, d in product(_CHIPS, ("bf16", "int8", "fp8"))),
        *(
            f"roofline --on {c} --matmul {s}"
            for c in ("v5e", "v5p", "h100", "b200")
            for s in ("1024x8192x8192", "8x8192x28672", "65536x4096x14336")
        ),
        *(
            f"collective {kind} --bytes {size} --on {pod}"
            for kind, size, pod in product(_KINDS, ("64KiB", "4MiB", "256MiB"), _PODS)
        ),
        *(f"book {problem}" for problem in _PROBLEMS.split()),
        *(f"model {model} --seq 8192" for model in _MODELS),
        *(
            f"mfu {m} --on {pod} --tokens-per-s 5000 --seq 4096"
            for m, pod in product(_MODELS, _PODS[:3])
        ),
        *(
            f"pipeline {s} --stages {n} --microbatches {4 * n}"
            for s, n in product(_SCHEDULES, (4, 8))
        ),
        *(
            f"fit {m} --layout {layout} --on {pod} {_JOB} --framework rooflight"
            for m in _SMALL
            for layout, pod in (
                ("fsdp=16", "v5e:4x4"),
                ("fsdp=4,tp=4", "v5e:4x4"),
                ("dp=4,tp=4", "v5p:4x2x2"),
                ("tp=8,dp=2", "h100:8x2"),
            )
        ),
        *(
            f"explain {m} --layout {layout} --mesh X=4,Y=4 --on v5e:4x4 {_JOB}"
            for m, layout in product(
                _SMALL, ("fsdp=X,tp=Y", "dp=X,tp=Y", "fsdp=XY", "dp=X,fsdp=Y", "tp=XY")
            )
        ),
        *(
            f"explain {m} --serve generate --layout tp=Y --mesh X=4,Y=4 --on v5e:4x4"
            " --sequences 16 --context 4096"
            for m in _SMALL
        ),
        *(
            f"fit {m} --serve --layout tp=4 --on v5e:2x2 --seq 4096 --sequences {n}"
            for m, n in product(_SMALL, (1, 16))
        ),
        *(
            f"plan train {m} --on {pod} --batch 64Ki --seq 4096 --rank roofline"
            for m, pod in (("llama3.2-1b", "v5e:2x4"), ("llama3-8b", "v5p:2x2x4"))
        ),
        *(
            f"forecast llama3-8b --on v5p:2x2x4 --layout {layout} --batch 256Ki --seq 4096"
            for layout in ("fsdp=16", "fsdp=8,tp=2")
        ),
        "budget llama3-8b --tokens 1T --on v5e:16x16 --seq 4096 --mfu 40%",
        *(
            f"simulate {m} --on v5e:2x4 --rate {rate} --isl 512 --osl 128 --requests 200"
            for m, rate in product(_SMALL[:2], (1, 4))
        ),
        *(f"frontier {m} --on v5e:2x4 --context 4096" for m in _SMALL[:2]),
        *(f"hlo {DUMPS / name}" for name in ("fsdp", "gather", "gpu", "psum", "scan")),
        "profile",
    ]
    yield from (line.split() for line in lines)
    meshes = (("v5e:4x4", "X=4,Y=4"), ("v5p:4x4x4", "X=4,Y=16"), ("h100:8x4", "X=4,Y=8"))
    for text, (on, mesh) in product(_CONTRACTIONS, meshes):
        yield ["matmul", text, "--dims", "I=8192,J=8192,K=32768", "--on", on, "--mesh", mesh]


def calls() -> Iterator[tuple[str, object]]:
    """Functions of Python, by a label: derivations, and the simulator of every link."""
    notation, contract = _module("algebra.notation"), _module("algebra.contract")
    reshard, autodiff = _module("algebra.reshard"), _module("algebra.autodiff")
    for text in _CONTRACTIONS:
        asked = notation.parse_contraction(text)
        found = [[str(s), dict(s.roles)] for s in contract.strategies(asked)]
        yield f"strategies({text})", found
        yield f"backward({text})", [str(one) for one in autodiff.backward(asked)]
    for source, target in _RESHARDS:
        one, other = notation.parse_tensor(source), notation.parse_tensor(target)
        yield f"reshard({source}, {target})", [str(step) for step in reshard.reshard(one, other)]
    mesh_of = _module("hardware.mesh", "specs.mesh").parse_mesh
    simulate = _module("costs.netsim.simulate", "netsim.simulate").simulate
    price = _module("costs.network").collective_time
    for kind, (on, axes) in product(
        (kind.replace("-", "_") for kind in _KINDS),
        (("v5e:4x4", "X=4,Y=4"), ("v5p:4x4x4", "X=16,Y=4"), ("h100:8x4", "X=4,Y=8")),
    ):
        mesh = mesh_of(axes, on=on)
        yield f"netsim({kind}, {on})", simulate(kind, 2.0**24, mesh, "X").seconds
        time = price(kind, 2.0**24, mesh.group("X"))
        yield f"collective_time({kind}, {on})", [time.lower_s, time.expected_s, time.upper_s]


def _module(*names: str) -> Any:
    """The first of a module's names that this tree has."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return import_module(f"rooflight.{name}")
    raise ModuleNotFoundError(names)


def answers() -> dict[str, Any]:
    """All of it, in this process, with the tree that is on its path."""
    from rooflight.cli.main import main

    found: dict[str, Any] = {}
    for words in commands():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--json"])
        try:
            document = json.loads(out.getvalue())
        except json.JSONDecodeError:
            document = out.getvalue() or err.getvalue().splitlines()[:1]
        found[" ".join(words)] = {"exit": code, "document": document}
    for label, document in calls():
        found[label] = {"exit": 0, "document": json.loads(json.dumps(document))}
    return found
