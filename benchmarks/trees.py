"""Two trees of the source give the same numbers: some 300 commands in each, their JSON compared.

    python -m benchmarks.trees record OLD/src old.json
    python -m benchmarks.trees record src new.json
    python -m benchmarks.trees compare old.json new.json --renamed matmuls_s=matmuls_s

Old spellings are used, so that both trees understand them. Numbers must agree to 1e-9; keys, after
the renames that were given.
"""

import argparse
import contextlib
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

_PODS = ("v5e:4x4", "v5p:4x4x4", "v6e:8x8", "h100:8x2", "b200:8x4")
_MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gemma2-9b", "qwen3-32b")
_SMALL = ("llama3-8b", "gemma2-9b", "mixtral-8x7b")


def commands() -> Iterator[str]:
    """What is asked, without --json."""
    yield from (
        "chips",
        "model",
        "budget llama3-8b --tokens 1T --on v5e:16x16 --seq 4096",
        "slice v5e:16x16",
        "slice h100:8x16",
    )
    chips = ("v4", "v5e", "v5p", "v6e", "tpu7x", "a100", "h100", "h200", "b200", "gb200", "mi300x")
    yield from (f"chips {chip}" for chip in chips)
    yield from (f"slice {pod}" for pod in _PODS)
    yield from (
        f"roofline --on {c} --dtype {d}" for c, d in product(chips, ("bf16", "int8", "fp8"))
    )
    shapes = ("1024x8192x8192", "8x8192x28672", "65536x4096x14336")
    yield from (
        f"roofline --on {c} --matmul {s}"
        for c, s in product(("v5e", "v5p", "h100", "b200"), shapes)
    )
    kinds = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
    yield from (
        f"collective {kind} --bytes {size} --on {pod}"
        for kind, size, pod in product(kinds, ("64KiB", "4MiB", "256MiB"), _PODS)
    )
    yield from (f"model {m} --seq 8192" for m in _presets())
    yield from (
        f"mfu {m} --on {pod} --tokens-per-s 5000 --seq 4096" for m, pod in product(_MODELS, _PODS)
    )
    schedules = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
    yield from (
        f"pipeline {s} --stages {n} --microbatches {4 * n}" for s, n in product(schedules, (4, 8))
    )
    yield from (
        f"fit {m} --layout {layout} --on {pod} --batch 512Ki --seq 4096"
        for m, layout, pod in product(_SMALL, ("fsdp=16", "fsdp=4,tp=4", "dp=4,tp=4"), _PODS[:1])
    )
    yield from (
        f"explain {m} --layout fsdp=X,tp=Y --mesh X=4,Y=4 --on v5e:4x4 --batch 512Ki --seq 4096"
        for m in _SMALL
    )
    yield from (
        f"plan train {m} --on {pod} --batch 512Ki --seq 4096" for m, pod in product(_SMALL, _PODS)
    )
    more = (
        "--rank roofline",
        "--framework maxtext",
        "--pareto",
        "--scaling weak",
        "--why-not tp=4",
    )
    yield from (f"plan train llama3-8b --on v5e:4x4 --batch 512Ki --seq 4096 {m}" for m in more)
    yield from (
        f"forecast llama3-70b --on h100:8x16 --layout {layout} --batch 1Mi --seq 4096"
        for layout in ("tp=8@node,dp=16", "tp=4,pp=4,dp=8", "tp=8,pp=4,vp=5,dp=4")
    )
    yield from (
        f"fit {m} --serve --layout tp=4 --on v5e:2x2 --seq 4096 --sequences {n}"
        for m, n in product(_SMALL, (1, 16))
    )
    yield from (
        f"plan serve {m} --rate 10 --isl 1024 --osl 256 --ttft 2s --tpot 50ms --on v5e:2x4"
        for m in _SMALL[:2]
    )
    yield from (
        f"simulate {m} --on v5e:2x4 --rate {rate} --isl 512 --osl 128 --requests 200"
        for m, rate in product(_SMALL[:2], (1, 4))
    )
    yield from (f"frontier {m} --on v5e:2x4 --context 4096" for m in _SMALL[:2])


def _presets() -> list[str]:
    import rooflight  # the tree's own

    folder = Path(str(rooflight.__file__)).parent / "models" / "presets"
    return sorted(path.stem for path in folder.glob("*.toml")) or list(_MODELS)


def record(most: int | None = None) -> dict[str, Any]:
    """Exit code and document of every command, in this process."""
    from rooflight.cli.main import main

    found: dict[str, Any] = {}
    for text in islice(commands(), most):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*text.split(), "--json"])
        try:
            document = json.loads(out.getvalue())
        except json.JSONDecodeError:
            document = out.getvalue() or err.getvalue().splitlines()[:1]
        found[text] = {"exit": code, "document": document}
    return found


def differences(old: Any, new: Any, renamed: dict[str, str], at: str = "") -> Iterator[str]:
    """Where two documents are not the same, the old one's keys renamed."""
    if isinstance(old, dict) and isinstance(new, dict):
        before = {renamed.get(key, key): value for key, value in old.items()}
        for key in dict.fromkeys((*before, *new)):
            if key not in before or key not in new:
                yield f"{at}.{key} is only in the {'new' if key in new else 'old'}"
            else:
                yield from differences(before[key], new[key], renamed, f"{at}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, renamed, f"{at}[{i}]")
    elif isinstance(old, int | float) and isinstance(new, int | float):
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-15):
            yield f"{at}: {old} -> {new}"
    elif old != new:
        yield f"{at}: {old!r} -> {new!r}"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--renamed", default="", help="OLD=NEW,...: keys of documents")
    parser.add_argument("--most", type=int, help="commands to run")
    args = parser.parse_args(words)
    if args.what == "record":
        env = os.environ | {"PYTHONPATH": f"{args.one}{os.pathsep}{Path(__file__).parents[1]}"}
        code = (
            "import json,sys;from benchmarks.trees import record;json.dump(record(%r),sys.stdout)"
        )
        with args.other.open("w") as out:
            return subprocess.run(
                [sys.executable, "-c", code % args.most], env=env, stdout=out
            ).returncode
    old, new = (json.loads(path.read_text()) for path in (args.one, args.other))
    renamed = dict(pair.split("=") for pair in args.renamed.split(",") if pair)
    differ = {
        text: found
        for text in old
        if text in new and (found := list(differences(old[text], new[text], renamed)))
    }
    answered = sum(one["exit"] == 0 for one in old.values())
    print(f"{len(old)} commands, {answered} with an answer, {len(differ)} differ")
    for text, found in differ.items():
        print(f"{text}\n  " + "\n  ".join(found[:6]))
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
