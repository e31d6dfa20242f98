"""Plans of every kind, and how far their collectives are those that the compiler made.

`python tests/verify/matched_plans.py` compiles them until they are partitioned, one after the
other, half a minute each; `--write` keeps what was found in matched_plans.json and writes the
table of docs/verify.md.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any  # fields of a plan by name

from plans import EXAMPLE
from whole_models import WHOLE

from rooflight.compile.findings.verify import Verdict, verify
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan
from rooflight.program.from_plan.served_step import ServedStep
from rooflight.units import format_si

STORE = Path(__file__).parent / "matched_plans.json"
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"
_TABLE = re.compile(r"(<!-- matched -->\n).*?(<!-- end matched -->)", flags=re.DOTALL)
KINDS = ("dense", "context", "experts", "slices", "pipeline", "decode")


@dataclass(frozen=True, slots=True)
class Case:
    """One plan, and what it is an example of."""

    kind: str
    plan: Plan | ServedStep

    @property
    def name(self) -> str:
        """All that decides the program, in words."""
        return " ".join([self.plan.model.name, "on", self.plan.slice, *self.words])

    @property
    def words(self) -> tuple[str, str]:
        """How it is split, and what else decides."""
        plan = self.plan
        if isinstance(plan, ServedStep):
            return plan.layout, f"{plan.dtypes}, {plan.rows} rows of {plan.context:,}"
        micro = f", {plan.microbatches} microbatches" if plan.microbatches > 1 else ""
        by = f" by {plan.virtual}" if plan.virtual > 1 else ""
        staged = f", {plan.schedule}{by}" if plan.schedule else ""
        tokens = f"{plan.batch:,} of {plan.seq:,}, remat {plan.remat}"
        return f"{plan.layout}, {plan.mesh}", f"{tokens}{micro}{staged}"


def trained(kind: str, model: str, on: str, layout: str, mesh: str, **options: Any) -> Case:
    """A training step; in stages, with two microbatches for each."""
    chosen: dict[str, Any] = {"remat": "block", "seq": 4096, "recipe": "f32", "microbatches": 1}
    chosen |= {"model": load_model(model), "slice": on, "layout": layout, "mesh": mesh}
    if "schedule" in options:
        stages = int(mesh.split(",")[0].removeprefix("P="))
        chosen |= {"stages": stages, "microbatches": 2 * stages}
    return Case(kind, replace(EXAMPLE, **(chosen | options)))


def served(model: str, on: str, layout: str, dtypes: str, rows: int, context: int) -> Case:
    return Case("decode", ServedStep(load_model(model), on, layout, dtypes, rows, context))


_8B, _70B, _MIXTRAL, _QWEN = "llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b"
_V5P, _STAGED = "v5p:4x4x4", (_70B, "v5p:4x4x8", "fsdp=X,sp=Y,pp=P", "P=4,X=8,Y=4")
_OF_WHOLE = {"cp": "context", "ep": "experts", "2*": "slices"}


def _kind_of(plan: Plan) -> str:
    text = f"{plan.layout} {plan.slice}"
    return next((kind for sign, kind in _OF_WHOLE.items() if sign in text), "dense")


CASES = (
    *(Case(_kind_of(whole.plan), whole.plan) for whole in WHOLE),
    trained("dense", _8B, "v5e:4x4", "fsdp=X", "X=16", batch=16),
    trained("dense", _8B, "v5e:4x4", "fsdp=X,tp=Y", "X=4,Y=4", batch=16, microbatches=2),
    trained("dense", "qwen3-8b", "v6e:8x8", "dp=Z,fsdp=X", "Z=4,X=16", batch=128, remat="dots"),
    trained("dense", _70B, "v5p:8x8x8", "fsdp=X,tp=Y", "X=64,Y=8", batch=512, remat="none"),
    trained("context", _8B, _V5P, "fsdp=X,cp=Y", "X=16,Y=4", batch=32, seq=32768),
    trained("context", _8B, _V5P, "dp=Z,ulysses=Y", "Z=16,Y=4", batch=16, seq=32768),
    trained("context", _8B, _V5P, "fsdp=X,ulysses=Y", "X=8,Y=8", batch=16, seq=32768),
    trained("experts", _MIXTRAL, _V5P, "fsdp=X", "X=64", batch=128),
    trained("experts", _QWEN, "v6e:8x8", "fsdp=X,ep=X", "X=64", batch=128),
    trained("experts", "gpt-oss-20b", _V5P, "dp=Z,fsdp=X,ep=X", "Z=4,X=16", batch=128),
    trained("slices", _8B, "4*v5e:4x4", "dp=Z,fsdp=X", "Z=4,X=16", batch=64),
    trained("slices", _MIXTRAL, "2*v5p:4x4x4", "dp=Z,fsdp=X,ep=X", "Z=16,X=8", batch=256),
    trained("pipeline", *_STAGED, batch=256, schedule="interleaved", virtual=2),
    trained("pipeline", *_STAGED, batch=256, schedule="zb-h1"),
    trained(
        *("pipeline", _70B, "v5p:4x4x8", "dp=Z,sp=Y,pp=P", "P=8,Z=4,Y=4"),
        batch=256,
        schedule="1f1b",
        recipe="16",
    ),
    trained(
        *("pipeline", "llama3.1-405b", "v5p:16x16x16", "fsdp=X,sp=Y,pp=P", "P=16,X=32,Y=8"),
        batch=1024,
        schedule="1f1b",
        recipe="16",
    ),
    trained(
        *("pipeline", "deepseek-v3", "v5p:8x16x16", "fsdp=X,ep=X,pp=P", "P=16,X=128"),
        batch=4096,
        schedule="1f1b",
        recipe="16",
    ),
    served(_8B, "v5e:2x4", "tp=8", "bf16", 32, 2048),
    served(_70B, "v5e:4x4", "tp=16", "int8", 32, 8192),
    served(_70B, "v5e:4x4", "tp=16,kv=batch", "bf16", 32, 8192),
    served(_70B, "v5e:4x4", "tp=16,kv=sequence", "bf16", 32, 8192),
    served(_8B, "v5e:4x4", "tp=4,ws=4", "bf16", 32, 8192),
    served(_MIXTRAL, "v5e:4x4", "tp=4,dp=4,ep=4", "bf16", 64, 4096),
    served(_QWEN, "v5e:4x4", "dp=16,ep=16", "bf16", 64, 4096),
    served("gpt-oss-20b", "v5e:2x4", "tp=8,ep=8", "bf16", 64, 4096),
    served("deepseek-v3", "v5p:4x4x8", "dp=16,tp=8,ep=128", "bf16", 256, 4096),
)
AGAIN = ("dense", "decode")  # kinds of which one is compiled in every check; all in the full one


@dataclass(frozen=True, slots=True)
class Found:
    """What the compiler made of a plan; `named` has runs and bytes of each class."""

    matched: int  # collectives per step, in kind, axes, count and bytes
    matched_bytes: int
    other_bytes: int  # found or expected, and not matched
    named: dict[str, list[int]]
    findings: list[str]

    @property
    def share(self) -> float:
        return self.matched_bytes / (self.matched_bytes + self.other_bytes)


@dataclass(frozen=True, slots=True)
class Store:
    """All of them by name, as last written."""

    date: str
    jax: str
    found: dict[str, Found]


def read_store() -> Store:
    data = json.loads(STORE.read_text(encoding="utf-8"))
    found = {name: Found(**one) for name, one in data.pop("found").items()}
    return Store(**data, found=found)


def ask(case: Case, cache: Path | None = None) -> Verdict:
    """Compiles a plan until it is partitioned."""
    verdict = verify(case.plan, cache=cache)
    assert verdict.matching, f"{case.name}: {verdict.done[0].words[-800:]}"
    return verdict


def found_in(verdict: Verdict) -> Found:
    matching = verdict.matching
    assert matching
    missing = sum(m.nbytes for m in matching.missing)
    named = {
        name: [sum(s.count or 0 for s in every), sum(s.nbytes for s in every)]
        for name, every in matching.named.items()
    }
    return Found(
        matching.matched_count,
        matching.matched_bytes,
        matching.found_bytes - matching.matched_bytes + missing,
        named,
        [f.words for f in verdict.findings],
    )


def table(store: Store) -> str:
    """What stands in the docs."""
    return "".join(f"{line}\n" for line in _lines(store))


def _lines(store: Store) -> Iterator[str]:
    found = [store.found[case.name] for case in CASES]
    bad = sum(bool(one.findings) for one in found)
    least = min(one.share for one in found)
    yield f"{len(CASES)} plans, jax {store.jax}, {store.date}: {bad or 'none'} with a finding;"
    yield f"of each, at least {least:.2%} of the bytes match."
    yield ""
    yield "| | model | slice | layout | step | collectives | bytes | matched |"
    yield "|---|---|---|---|---|---:|---:|---:|"
    for case in sorted(CASES, key=lambda c: KINDS.index(c.kind)):
        one = store.found[case.name]
        cells = [case.kind, case.plan.model.name, case.plan.slice, *case.words]
        counts = [f"{one.matched:,}", format_si(one.matched_bytes, "B"), _percent(one.share)]
        yield f"| {' | '.join([*cells, *counts])} |"
    yield ""
    yield "| not in the derivation, by design | plans | times | bytes |"
    yield "|---|---:|---:|---:|"
    plans, runs, nbytes = Counter[str](), Counter[str](), Counter[str]()
    for one in found:
        for name, (count, size) in one.named.items():
            plans[name] += 1
            runs[name] += count
            nbytes[name] += size
    for name in plans:
        yield f"| {name} | {plans[name]} | {runs[name]:,} | {format_si(nbytes[name], 'B')} |"


def _percent(share: float) -> str:
    """As many nines as there are: 99.998 %."""
    return "100 %" if share == 1 else f"{100 * share:.6f}"[: 5 if share < 0.99 else 7] + " %"


def main(*, write: bool) -> None:
    found: dict[str, Found] = {}
    versions: dict[str, str] = {}
    for case in CASES:
        verdict = ask(case)
        versions = dict(verdict.done[0].versions)
        one = found[case.name] = found_in(verdict)
        seconds = verdict.done[0].seconds
        print(f"{one.share:.4%} of {one.matched:,}, {seconds:.0f} s  {case.name}", flush=True)
        for words in one.findings:
            print(f"  {words}", flush=True)
    if write:
        store = Store(date.today().isoformat(), versions["jax"], found)
        STORE.write_text(json.dumps(asdict(store), indent=1) + "\n", encoding="utf-8")
        text = DOCS.read_text(encoding="utf-8")
        assert _TABLE.search(text), f"{DOCS.name} has no <!-- matched --> ... <!-- end matched -->"
        new = _TABLE.sub(lambda match: f"{match[1]}{table(store)}{match[2]}", text)
        DOCS.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    main(write=parser.parse_args().write)
