"""A verdict as JSON: what `rooflight verify --json` prints, and a later `--baseline` reads.

In: a verdict on a plan or on a function. Out: plain data, all of it. `known_of` adds what the
command knows beside its document, so that what it shows is made of one thing.
"""

from collections.abc import Iterable
from dataclasses import asdict

from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.aot.target import usable_bytes
from rooflight.compile.expected.match import Surplus
from rooflight.compile.findings.baseline import Comparison
from rooflight.compile.findings.finding import collective_seconds
from rooflight.compile.findings.subject import subject_of
from rooflight.compile.findings.verify import Verdict
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import time_document
from rooflight.hardware.mesh import Mesh

Document = dict[str, object]
_COLLECTIVE = ("kind", "axes", "dtype", "nbytes", "count", "source", "op_name")
_SURPLUS = ("name", "kind", "axes", "dtype", "nbytes", "op_name", "source")


def known_of(verdict: Verdict | ProgramVerdict) -> Document:
    """The document, with names and figures that a file of it does not have."""
    more: Document = {"last_words": verdict.failed.last_words} if verdict.failed else {}
    if isinstance(verdict, ProgramVerdict):
        sizes = verdict.done[0].axes
        more["alike"] = {axis: sizes[axis] for axis in verdict.alike}
        more["known_flops"] = verdict.partitioned.known_flops if verdict.partitioned else None
    else:
        time = verdict.plan.time
        more["subject"] = f"{verdict.plan.model.name}, {verdict.plan.layout}"
        more["planned"] = {
            "step_s": time.roofline_s,
            "matmuls_s": time.matmuls_s,
            "collectives_s": dict(time.collectives_s),
        }
    return verdict_document(verdict) | more


def verdict_document(verdict: Verdict | ProgramVerdict) -> Document:
    """All of it, for a machine and for a later --baseline."""
    return _of_program(verdict) if isinstance(verdict, ProgramVerdict) else _of_plan(verdict)


def _of_plan(verdict: Verdict) -> Document:
    matching, memory, plan = verdict.matching, verdict.memory, verdict.plan
    return {
        "plan": verdict.hash,
        "slice": plan.slice,
        **_asked(verdict),
        "matched": matching
        and {
            "count": matching.matched_count,
            "bytes": matching.matched_bytes,
            "share": matching.matched_share,
        },
        "collectives": _collectives(verdict.collectives, verdict.mesh),
        "missing": [] if matching is None else [asdict(m) for m in matching.missing],
        "surplus": [] if matching is None else [_surplus(s) for s in matching.surplus],
        "replicated": [asdict(r) for r in verdict.replicated],
        "unseen": list(verdict.unseen),
        "warnings": list(verdict.warnings),
        "schedule": _schedule(verdict.scheduled, verdict.mesh),
        "time": {"planned_s": plan.time.roofline_s, "compiled": time_document(verdict.time)},
        "memory": {
            "planned_bytes": plan.memory.total_bytes,
            "compiler_bytes": memory.total_bytes if memory else None,
            "compiler": dict(memory.by_category) if memory else None,
            "terms": [asdict(t) for t in subject_of(plan).terms()],
        },
    }


def _of_program(verdict: ProgramVerdict) -> Document:
    step, memory, mesh = verdict.partitioned, verdict.memory, verdict.mesh
    return {
        "fn": verdict.build,
        "slice": str(mesh.slice),
        "mesh": str(mesh),
        **_asked(verdict),
        "least_s": verdict.step_s,
        "schedule": _schedule(verdict.scheduled, mesh),
        "time": time_document(verdict.time),
        "flops": step.flops if step else None,
        "collectives": _collectives(step.collectives, mesh) if step else [],
        "arguments": [asdict(a) | {"cut": sorted(a.cut)} for a in verdict.arguments],
        "memory": {
            "compiler_bytes": memory.total_bytes if memory else None,
            "limit_bytes": usable_bytes(mesh, verdict.done[0].axes),
            "compiler": dict(memory.by_category) if memory else None,
        },
    }


def _asked(verdict: Verdict | ProgramVerdict) -> Document:
    """What was asked of the compiler, and what is odd."""
    return {
        "findings": [asdict(finding) for finding in verdict.findings],
        "compiles": [
            {"until": d.request.until, "outcome": d.outcome, "words": d.words, "seconds": d.seconds}
            for d in verdict.done
        ],
        "versions": verdict.done[0].versions,
    }


def _schedule(step: CompiledStep | None, mesh: Mesh) -> Document | None:
    """How the compiler laid the step out; none before the schedule."""
    if step is None:
        return None
    fusions = [w.count or 1 for w in step.work if w.opcode == "fusion"]
    waits = [c for c in step.collectives if c.is_exposed or c.form in ("sync", "fusion")]
    return {
        "fusions": sum(fusions),
        "moved_bytes": sum(w.nbytes * (w.count or 1) for w in step.moves),
        "collectives": [
            {"kind": c.kind, "axes": c.axes, "form": c.form, "count": c.count, "nbytes": c.nbytes}
            for c in step.collectives
        ],
        "waits_s": sum(collective_seconds(c, mesh) or 0.0 for c in waits),
    }


def _surplus(one: Surplus) -> Document:
    return _fields(one.collective, _SURPLUS, count=one.count, op=one.op, named=one.named)


def _collectives(found: Iterable[Collective], mesh: Mesh) -> list[Document]:
    """What a later verdict is compared with."""
    return [_fields(c, _COLLECTIVE, seconds=collective_seconds(c, mesh)) for c in found]


def _fields(found: Collective, names: Iterable[str], **more: object) -> Document:
    return {name: getattr(found, name) for name in names} | more


def comparison_document(comparison: Comparison) -> Document:
    return {
        "added": [asdict(finding) for finding in comparison.added],
        "better": list(comparison.better),
        "changed": list(comparison.changed),
    }
