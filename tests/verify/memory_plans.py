"""Plans of whole models, and what one chip holds: as planned, and as the TPU compiler assigned it.

`python tests/verify/memory_plans.py` compiles them, one after the other; `--write` keeps the bytes
in compiled_memory.json and writes the table of docs/verify.md.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

from plans import EXAMPLE

from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.aot.state import program_job
from rooflight.compile.findings.subject import BUILD
from rooflight.models.presets import load_model
from rooflight.plan.file.record import MemoryUse, Plan, to_json
from rooflight.plan.training.memory.count import memory
from rooflight.units import format_si

STORE = Path(__file__).parent / "compiled_memory.json"
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"
_TABLE = re.compile(r"(<!-- memory -->\n).*?(<!-- end -->)", flags=re.DOTALL)
Ki, Mi = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class Case:
    """The facts of a plan; `tokens` of a step."""

    model: str
    slice: str
    layout: str
    mesh: str
    tokens: int
    seq: int
    remat: str
    microbatches: int = 1
    recipe: str = "10"

    @property
    def name(self) -> str:
        micro = f", {self.microbatches} microbatches" if self.microbatches > 1 else ""
        where = f"{self.model} on {self.slice}, {self.layout}, {self.mesh}"
        return f"{where}, {self.tokens // Ki} Ki tokens, remat {self.remat}{micro}, {self.recipe}"

    def plan(self) -> Plan:
        plan = replace(
            EXAMPLE,
            model=load_model(self.model),
            slice=self.slice,
            layout=self.layout,
            mesh=self.mesh,
            batch=self.tokens // self.seq,
            seq=self.seq,
            remat=self.remat,
            microbatches=self.microbatches,
            recipe=self.recipe,
        )
        found = memory(program_job(plan))
        return replace(plan, memory=MemoryUse(found.stage, found.parts, found.hbm_bytes))


_8B, _70B, _MIXTRAL = "llama3-8b", "llama3-70b", "mixtral-8x7b"
_V5P = "v5p:4x4x4"
CASES = (
    Case(_8B, "v5e:4x4", "fsdp=X", "X=16", 64 * Ki, 4096, "block"),
    Case(_8B, "v5e:4x4", "fsdp=X", "X=16", 128 * Ki, 4096, "block"),
    Case(_8B, "v5e:4x4", "fsdp=X,sp=Y", "X=4,Y=4", 64 * Ki, 4096, "block"),
    Case(_8B, "v5e:8x8", "fsdp=X,sp=Y", "X=16,Y=4", 256 * Ki, 4096, "dots"),
    Case(_8B, "v5e:4x4", "fsdp=X,tp=Y", "X=4,Y=4", 64 * Ki, 4096, "block", 2),
    Case(_8B, "v5e:16x16", "dp=Z,fsdp=X", "Z=16,X=16", Mi, 4096, "block"),
    Case(_8B, "v5e:8x8", "fsdp=X", "X=64", 512 * Ki, 8192, "block"),
    Case(_8B, _V5P, "dp=Z", "Z=64", Mi, 4096, "none", 2),
    Case(_8B, _V5P, "dp=Z", "Z=64", Mi, 4096, "block", 4),
    Case(_8B, _V5P, "dp=Z,fsdp=X", "Z=4,X=16", Mi, 4096, "none"),
    Case(_8B, _V5P, "fsdp=X", "X=64", Mi, 4096, "dots"),
    Case(_8B, _V5P, "dp=Z,fsdp=X", "Z=8,X=8", Mi, 4096, "dots", 2, "16"),
    Case(_8B, _V5P, "fsdp=X", "X=64", Mi, 8192, "dots", 1, "f32"),
    Case(_8B, _V5P, "fsdp=X,cp=Y", "X=16,Y=4", Mi, 32768, "block"),
    Case(_8B, _V5P, "dp=Z,ulysses=Y", "Z=16,Y=4", 512 * Ki, 32768, "block", 1, "18"),
    Case(_70B, _V5P, "fsdp=X,sp=Y", "X=16,Y=4", 256 * Ki, 4096, "block"),
    Case(_70B, _V5P, "dp=Z,fsdp=X,sp=Y", "Z=2,X=8,Y=4", 256 * Ki, 4096, "block", 2),
    Case(_70B, "v5p:8x8x8", "fsdp=X", "X=512", 4 * Mi, 8192, "block"),
    Case(_70B, "v5p:8x8x8", "fsdp=X,tp=Y", "X=64,Y=8", 2 * Mi, 4096, "none"),
    Case(_70B, "v5p:16x16x16", "dp=Z,fsdp=X,sp=Y", "Z=16,X=64,Y=4", 4 * Mi, 4096, "dots"),
    Case(_70B, "v6e:16x16", "fsdp=X,cp=Y", "X=64,Y=4", Mi, 4096, "block"),
    Case(_70B, "v6e:16x16", "fsdp=X,sp=Y", "X=64,Y=4", Mi, 4096, "block", 1, "16"),
    Case(_70B, "2*v5p:4x4x4", "dp=Z,fsdp=X,sp=Y", "Z=2,X=16,Y=4", 512 * Ki, 4096, "block"),
    Case("llama3.1-405b", "v5p:16x16x16", "fsdp=X,sp=Y", "X=512,Y=8", 4 * Mi, 8192, "block"),
    Case("gemma2-9b", "v5e:8x8", "fsdp=X,sp=Y", "X=16,Y=4", 256 * Ki, 4096, "block"),
    Case("gemma2-9b", "v6e:4x4", "fsdp=X", "X=16", 128 * Ki, 8192, "block"),
    Case("qwen3-8b", "v6e:8x8", "dp=Z,fsdp=X", "Z=4,X=16", 512 * Ki, 4096, "dots"),
    Case(_MIXTRAL, _V5P, "dp=Z,fsdp=X,ep=X", "Z=8,X=8", 512 * Ki, 4096, "block"),
    Case(_MIXTRAL, _V5P, "dp=Z,fsdp=X,ep=X", "Z=8,X=8", 512 * Ki, 4096, "dots"),
    Case(_MIXTRAL, _V5P, "fsdp=X", "X=64", 512 * Ki, 4096, "block"),
    Case("qwen3-30b-a3b", _V5P, "dp=Z,fsdp=X,ep=X", "Z=4,X=16", Mi, 4096, "block"),
    Case("qwen3-30b-a3b", "v6e:8x8", "fsdp=X,ep=X", "X=64", 512 * Ki, 4096, "block"),
    Case("deepseek-v3", "v5p:8x8x16", "dp=Z,fsdp=X,ep=X", "Z=16,X=64", 4 * Mi, 4096, "block"),
    Case("gpt-oss-20b", _V5P, "dp=Z,fsdp=X,ep=X", "Z=4,X=16", 512 * Ki, 4096, "dots"),
)


def ask(case: Case, cache: Path | None = None) -> tuple[int, dict[str, str]]:
    """What the compiler needs of main memory, asked now, and which versions said so."""
    plan = case.plan()
    request = CompileRequest(BUILD, plan.placed(), {"plan": to_json(plan)})
    done = compile_all([request], cache=cache)[0]
    found = read_compilation(done).memory if done.is_good else None
    if found is None:
        raise SystemExit(f"{case.name}: {done.outcome}\n{done.words[-800:]}")
    return found.total_bytes, dict(done.versions)


@dataclass(frozen=True, slots=True)
class Store:
    """The compiler's bytes by the name of a case, as last written."""

    date: str
    jax: str
    nbytes: dict[str, int]


def read_store() -> Store:
    return Store(**json.loads(STORE.read_text(encoding="utf-8")))


def errors(store: Store) -> dict[str, float]:
    """Planned over compiled, less one."""
    return {c.name: c.plan().memory.total_bytes / store.nbytes[c.name] - 1 for c in CASES}


def table(store: Store) -> str:
    """What stands in the docs."""
    return "".join(f"{line}\n" for line in _lines(store))


def _lines(store: Store) -> Iterator[str]:
    found = errors(store)
    sizes = [abs(error) for error in found.values()]
    middle, most = statistics.median(sizes), max(sizes)
    yield f"{len(CASES)} plans, jax {store.jax}, {store.date}:"
    yield f"median difference {middle:.1%}, largest {most:.1%}."
    yield ""
    yield "| model | slice | layout | remat | planned | compiler | planned is |"
    yield "|---|---|---|---|---:|---:|---:|"
    for case in CASES:
        micro = f", {case.microbatches} microbatches" if case.microbatches > 1 else ""
        recipe = "" if case.recipe == "10" else f", recipe {case.recipe}"
        both = (case.plan().memory.total_bytes, store.nbytes[case.name])
        cells = [
            f"{case.model}, {case.tokens // Ki:,} Ki tokens{micro}{recipe}",
            case.slice,
            f"{case.layout}, {case.mesh}",
            case.remat,
            *(format_si(nbytes, "B") for nbytes in both),
            f"{found[case.name]:+.1%}",
        ]
        yield f"| {' | '.join(cells)} |"


def main(*, write: bool) -> None:
    found: dict[str, int] = {}
    versions: dict[str, str] = {}
    for case in CASES:
        found[case.name], versions = ask(case)
        planned = case.plan().memory.total_bytes
        print(f"{planned / found[case.name] - 1:+.1%}  {case.name}", flush=True)
    store = Store(date.today().isoformat(), versions["jax"], found)
    if write:
        STORE.write_text(json.dumps(asdict(store), indent=1) + "\n", encoding="utf-8")
        text = DOCS.read_text(encoding="utf-8")
        assert _TABLE.search(text), f"{DOCS.name} has no <!-- memory --> ... <!-- end -->"
        new = _TABLE.sub(lambda match: f"{match[1]}{table(store)}{match[2]}", text)
        DOCS.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    main(write=parser.parse_args().write)
