"""Compiles the programs of `programs.py` and keeps the dumps the reader's tests read.

`python tests/verify/make_dumps.py [NAME...]` writes tests/verify/dumps/NAME/, small parts of real
dumps with this machine's paths taken out. It needs libtpu; two of them need minutes. The GPU one
needs the CUDA plugin, and is left as it is without.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rooflight.compile.aot.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.compile.aot.run import Compilation, compile_all
from rooflight.compile.hlo.dump import EXAMPLE
from rooflight.errors import MissingExtraError
from rooflight.hardware.mesh import parse_mesh

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DUMPS = HERE / "dumps"
SMALL = {"rows": 4096, "cols": 8192}
LAYERS = {"layers": 6, "tokens": 4096, "model": 2048, "hidden": 8192}
KEPT = (
    *("*after_codegen.txt", "*after_optimizations_after_buffer_assignment.txt"),
    *("*gpu_after_optimizations.txt", "*-buffer-assignment.txt", "*-live-range.txt"),
    *("*after_tpu-spmd-partitioning.before*.txt", "*oom_intermediate_module.txt"),
)


def request(
    build: str,
    on: str,
    mesh: str,
    arguments: Mapping[str, object],
    **more: object,
) -> CompileRequest:
    return CompileRequest(
        f"programs:{build}",
        parse_mesh(mesh, on=on),
        arguments,
        folder=str(HERE),
        **more,  # pyright: ignore[reportArgumentType]
    )


REQUESTS = {
    "psum": request("psum", "v5e:4x4", "X=4,Y=4", SMALL, until="executable"),
    "gather": request("gather", "v5e:4x4", "X=4,Y=4", SMALL, until="executable"),
    "scan": request("scan", "v5e:4x4", "X=4,Y=4", {**SMALL, "outer": 3, "inner": 5}),
    "fsdp": request("fsdp", "v5e:4x4", "X=4,Y=4", LAYERS, until="executable"),
    "fsdp-v5p": request("fsdp", "v5p:4x4x4", "X=16,Y=4", LAYERS),
    "fsdp-partitioned": request(
        *("fsdp", "v5p:4x4x4", "X=16,Y=4", LAYERS),
        until="partitioned",
        options=PLAIN_COLLECTIVES,
    ),
    "two-slices": request("psum", "2*v5e:4x4", "X=8,Y=4", SMALL),
    "too-large": request("too_large", "v5e:4x4", "X=4,Y=4", {"rows": 400_000}),
    "gpu": request("gather", "h100:8", "X=4,Y=2", SMALL),
}


def keep(name: str, done: Compilation) -> None:
    """Copies the texts a reader wants: of the HLO only the latest stage."""
    target = DUMPS / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    stage = done.request.until
    for pattern in KEPT:
        if stage == "executable" and "after_optimizations_after" in pattern:
            continue  # the text after code generation says all of it
        if stage != "partitioned" and "partitioning" in pattern:
            continue
        for path in done.folder.glob(pattern):
            text = path.read_text().replace(f"{HERE}/", "").replace(f"{ROOT}/", "")
            (target / path.name).write_text(text)
    for path in done.folder.glob("*-memory-usage-report.txt"):
        totals = [x for x in path.read_text().splitlines() if x.startswith(("Memory", "Total"))]
        (target / path.name).write_text("\n".join(totals) + "\n")
    facts = json.loads((done.folder / "summary.json").read_text())
    for fact in ("key", "seconds", "cpu_s", "resident_bytes"):
        facts.pop(fact, None)
    (target / "summary.json").write_text(json.dumps(facts, indent=1) + "\n")


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as cache:
        for name in names or REQUESTS:
            try:
                done = compile_all([REQUESTS[name]], cache=Path(cache))[0]
            except MissingExtraError as error:
                print(f"{name}: left as it is, {error}")
                continue
            print(f"{name}: {done.outcome} in {done.seconds:.0f} s {done.words}")
            keep(name, done)
            if name == "fsdp-partitioned":
                (text,) = (DUMPS / name).glob("module*.txt")
                shutil.copy(text, EXAMPLE)


if __name__ == "__main__":
    main(sys.argv[1:])
