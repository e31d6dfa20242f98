"""The public functions: text in, records out. `import rooflight as rf` has them all.

Whatever takes a model takes a preset's name, the path of a config.json or a `ModelSpec`; a slice is
written as for `--on`; tokens and bytes are numbers or text such as `4Mi`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.compile.findings.judge import Until, Verdict, judge
from rooflight.compile.hlo.dump import choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.step import CompiledStep
from rooflight.costs.choose import Choice, choose
from rooflight.costs.network import CollectiveKind, NetworkTime, collective_time
from rooflight.costs.roofline import OpTime, matmul_time
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.measure.reconcile.run import Reconciled, reconcile_run
from rooflight.measure.trace.read import read_trace as trace_of
from rooflight.measure.trace.record import Trace
from rooflight.models import presets
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan, read_plan
from rooflight.plan.training.memory.count import Memory
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.plan.training.questions.why_not import WhyNot, best_of
from rooflight.plan.training.questions.why_not import why_not as answer_why_not
from rooflight.plan.training.search.candidate import Candidate, Question, Rank, price_one
from rooflight.plan.training.search.plan import (
    plan_record,
    rounded_batch,
    train_question,
)
from rooflight.plan.training.search.plan import plan_training as search_plan
from rooflight.plan.training.search.wanted import parse_wanted, region_of
from rooflight.units import parse_count

Model = str | ModelSpec
Count = int | str


def load_model(model: Model) -> ModelSpec:
    """A preset by name, or the model of a config.json.

    >>> load_model("llama3-70b").num_layers
    80
    """
    return model if isinstance(model, ModelSpec) else presets.load_model(model)


def plan_training(
    model: Model,
    *,
    on: str | Slice,
    batch: Count,
    seq: Count,
    dtype: str = "bf16",
    framework: str | None = None,
    recipe: str | None = None,
    rank: Rank = "forecast",
    hbm_margin: float | None = None,
) -> Plan:
    """The layout that trains a model fastest by the forecast, with its time, memory and reasons.

    >>> plan = plan_training("llama3-8b", on="v5p:2x2x4", batch="256Ki", seq=4096)
    >>> plan.layout, plan.mesh, plan.time.step_s > plan.time.roofline_s
    ('fsdp=X', 'X=16@x+y+z', True)
    """
    spec = load_model(model)
    question = _question(spec, on, batch, seq, dtype, framework, recipe, rank, hbm_margin)
    return plan_record(spec, question, search_plan(question))


def forecast(
    model: Model,
    *,
    on: str | Slice,
    layout: str,
    batch: Count,
    seq: Count,
    dtype: str = "bf16",
    framework: str | None = None,
    recipe: str | None = None,
) -> Candidate:
    """How long a step of a given layout takes: degrees, or axes on tiers, as people write them.

    >>> found = forecast("llama3-8b", on="h100:8x8", layout="tp=4,dp=16", batch="1Mi", seq=8192)
    >>> found.forecast.low_s < found.step_s < found.forecast.high_s, found.memory.fits
    (True, True)
    """
    question = _question(load_model(model), on, batch, seq, dtype, framework, recipe)
    region, _ = region_of(parse_wanted(layout, question.graph), question)
    found = best_of(replace(question, region=region))
    if found is None:
        raise UsageError(
            f"no placement of {layout} divides {question.batch} sequences on {question.on}",
            hint="`why_not` of a plan says what does not divide",
        )
    return found


def fit(
    model: Model, *, on: str | Slice, layout: str, batch: Count, seq: Count, **settings: Any
) -> Memory:
    """Bytes on one chip under a layout, part by part, whether they fit or not.

    >>> held = fit("llama3-70b", on="h100:8", layout="tp=8", batch="64Ki", seq=8192)
    >>> held.fits, held.largest(1)[0].name
    (False, 'optimizer moments')
    """
    return forecast(model, on=on, layout=layout, batch=batch, seq=seq, **settings).memory


def why_not(plan: Plan, layout: str) -> WhyNot:
    """What another layout would do instead of a plan's, term by term.

    >>> plan = plan_training("llama3-8b", on="v5p:2x2x4", batch="256Ki", seq=4096)
    >>> why_not(plan, "fsdp=8,tp=2").verdict
    'slower'
    """
    question, best = _of_plan(plan)
    return answer_why_not(question, parse_wanted(layout, question.graph), best)


def load_plan(path: str | Path) -> Plan:
    """A plan file, as `Plan.save` or `rooflight plan train --json` wrote it."""
    return read_plan(str(path))


def verify(plan: Plan, *, until: Until = "partitioned") -> Verdict:
    """Compiles the program of a plan for its slice, no chip attached, and says what is odd."""
    return judge(plan, until=until)


def build_train_step(plan: Plan) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step of a plan and its abstract arguments, on this process's devices (needs jax).

    The mesh has the plan's axes and stays set, as `jax.set_mesh` leaves it.
    """
    from rooflight.program.from_plan.train import build_here  # plans are made without jax

    return build_here(plan)


def matmul(
    contraction: str, *, on: str | Slice, mesh: str, dims: Mapping[str, int], dtype: str = "bf16"
) -> Choice:
    """The fastest way to a sharded product, and the others, each with the time of every step.

    >>> sizes = {"I": 8192, "J": 8192, "K": 32768}
    >>> found = matmul("A[I,J_X] * B[J_X,K] -> C[I,K]", on="v5e:4x4", mesh="X=4,Y=4", dims=sizes)
    >>> [step.op for step in found.best.strategy.steps]
    ['einsum', 'all_reduce']
    """
    placed = _mesh(on, mesh)
    asked = strategies(parse_contraction(contraction), placed.axes)
    return choose(asked, dims=dims, mesh=placed, dtype=parse_dtype(dtype))


def collective(
    kind: CollectiveKind, nbytes: Count, *, on: str | Slice, mesh: str, axes: Sequence[str]
) -> NetworkTime:
    """Seconds of a collective of so many bytes over some axes of a mesh.

    >>> time = collective("all_gather", "34M", on="v5e:4x4", mesh="X=4,Y=4", axes="X")
    >>> round(time.expected_s * 1e6)
    570
    """
    return collective_time(kind, _count(nbytes, "nbytes"), _mesh(on, mesh).group(list(axes)))


def roofline(m: int, k: int, n: int, *, on: str | Slice, dtype: str = "bf16") -> OpTime:
    """Seconds of a matmul of (m, k) and (k, n) on one chip, and the roof that binds it.

    >>> roofline(8, 4096, 4096, on="v5e").binds
    'HBM'
    """
    kind = parse_dtype(dtype)
    return matmul_time(_slice(on).chip, m=m, k=k, n=n, lhs=kind, rhs=kind, out=kind)


def read_hlo(path: str | Path, *, module: str | None = None) -> CompiledStep:
    """Collectives, loops, matmuls and memory of a file, or of a folder of `--xla_dump_to`."""
    where = Path(path)
    return read_dump(choose_dump(find_dumps(where), module=module, where=where))


def read_trace(path: str | Path) -> Trace:
    """A trace of JAX's profiler: an `.xplane.pb`, or the folder it was written to."""
    return trace_of(Path(path))


def reconcile(run: str | Path, *, on: str | Slice | None = None) -> Reconciled:
    """A training run: planned, compiled, measured, and the causes of the gap."""
    return reconcile_run(Path(run), None if on is None else _slice(on))


def _question(
    model: ModelSpec,
    on: str | Slice,
    batch: Count,
    seq: Count,
    dtype: str,
    framework: str | None,
    recipe: str | None,
    rank: Rank = "forecast",
    hbm_margin: float | None = None,
) -> Question:
    tokens, length = _count(batch, "batch"), _count(seq, "seq")
    question = train_question(
        *(model_graph(model), _slice(on), max(1, tokens // length), length, parse_dtype(dtype)),
        framework=framework,
        recipe=recipe,
        rank=rank,
        hbm_margin=hbm_margin,
    )
    is_whole = tokens % length == 0
    return question if is_whole else replace(question, batch=rounded_batch(question, tokens))


def _of_plan(plan: Plan) -> tuple[Question, Candidate]:
    """The question that a plan answered, and its layout, priced again."""
    question = train_question(
        *(model_graph(plan.model), plan.placed().slice, plan.batch, plan.seq),
        parse_dtype(plan.dtype),
        overlap=plan.overlap,
        recipe=plan.recipe,
        framework=plan.framework,
        rank="forecast" if plan.time.forecast else "roofline",
    )
    micro = Microbatching(plan.microbatches, plan.schedule or "1f1b", plan.virtual)
    remat = parse_remat(plan.remat, question.graph)
    return question, price_one(question, parse_layout(plan.layout), plan.placed(), micro, remat)


def _slice(on: str | Slice) -> Slice:
    return on if isinstance(on, Slice) else parse_slice(on)


def _mesh(on: str | Slice, mesh: str) -> Mesh:
    return parse_mesh(mesh, on=str(_slice(on)))


def _count(value: Count, what: str) -> int:
    return value if isinstance(value, int) else parse_count(value, what=what)
