"""Derives a `StepModel`: the terms of every layer, of each phase and of both at once, by stage.

In: a model, a slice, a `ServingLayout`, a `Precision`. Out: a `StepModel`. Everything comes from
the graph, the algebra and the costs that training uses.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import device_bytes, ways
from rooflight.costs.network import collective_time
from rooflight.errors import PlacementError
from rooflight.hardware.mesh import Mesh, place
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.adapters import Adapters
from rooflight.plan.serving.step.experts import Balance, ExpertLoads
from rooflight.plan.serving.step.layout import Phase, Precision, ServingLayout, mesh_axes, rules
from rooflight.plan.serving.step.model import Counted, Stage, StepModel
from rooflight.plan.serving.step.terms import CommTerm, StepSpec, Term, layer_terms, nominal_sizes
from rooflight.plan.training.time.stage_time import HEAD
from rooflight.plan.training.time.stages import stage_layers
from rooflight.plan.training.time.step_time import layer_runs

_ATTENTION = ("attention.scores", "attention.rope_scores", "attention.softmax", "attention.mix")
_GENERATE: frozenset[Phase] = frozenset(("generate",))
_PREFILL: frozenset[Phase] = frozenset(("prefill",))
_BOTH = _GENERATE | _PREFILL
_BF16 = Precision()
_OVERHEAD = "step_overhead_s"  # of a chip's catalog file, where somebody has measured it

Phased = tuple[frozenset[Phase], Term]
Blocks = Mapping[int, tuple[Phased, ...]]  # by kind of layer; HEAD is the output head


def serving_model(
    model: ModelSpec,
    on: Slice,
    layout: ServingLayout,
    precision: Precision = _BF16,
    *,
    overhead_s: float | None = None,
    experts: ExpertLoads | None = None,
    adapters: Adapters | None = None,
) -> StepModel:
    """Derives the terms of every layer; `overhead_s` is that of the chip's catalog unless given.

    >>> from rooflight.plan.serving.step.layout import parse_precision
    >>> from rooflight.models.presets import load_model
    >>> from rooflight.hardware.slice import parse_slice
    >>> model = serving_model(load_model("llama3-70b"), parse_slice("v5e:4x4"),
    ...                       ServingLayout(tp=16, kv="batch"), parse_precision("int8"))
    >>> step = model.generate([8192] * 32)
    >>> step.binds, f"{step.lower_s * 1e3:.1f} ms"
    ('weights', '8.7 ms')
    """
    if layout.num_chips != on.num_chips:
        raise PlacementError(
            f"layout {layout} is for {layout.num_chips} chips, {on} has {on.num_chips}",
            hint=f"change a number of ways, such as tp={on.num_chips}",
        )
    mesh = place(mesh_axes(layout, model), on)
    balance = experts and experts.balance(model, layout)
    beside = balance, adapters
    generate = _blocks(model, layout, mesh, precision, "generate", *beside)
    prefill = _blocks(model, layout, mesh, precision, "prefill", *beside)
    both = {b: _merged(generate[b], prefill[b]) for b in generate}
    stages = {
        phases: _stages(model, layout, blocks)
        for phases, blocks in ((_GENERATE, generate), (_PREFILL, prefill), (_BOTH, both))
    }
    known = on.chip.detail.get(_OVERHEAD, 0.0) if overhead_s is None else overhead_s
    return StepModel(model, mesh, layout, precision, stages, known, balance)


@lru_cache(maxsize=1024)
def known_model(
    model: ModelSpec, on: str, layout: ServingLayout, precision: Precision
) -> StepModel:
    """The same for a slice of the catalog, derived once."""
    return serving_model(model, parse_slice(on), layout, precision)


def _blocks(
    model: ModelSpec,
    layout: ServingLayout,
    mesh: Mesh,
    precision: Precision,
    phase: Phase,
    balance: Balance | None,
    adapters: Adapters | None,
) -> Blocks:
    graph = model_graph(model, absorbed=phase == "generate")
    setting = StepSpec(graph, rules(layout, model, phase), mesh, precision, balance, adapters)
    only = frozenset[Phase]((phase,))
    found = {b: [(only, t) for t in layer_terms(setting, ops)] for b, ops in layer_runs(graph)}
    if layout.pp > 1:
        found[HEAD].append((only, _hand_over(setting)))
    return {b: tuple(terms) for b, terms in found.items()}


def _hand_over(setting: StepSpec) -> CommTerm:
    """The stream to the next stage; the last one's tokens go back to the first."""
    stages = setting.layout.stages
    stream = setting.layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
    sizes, axes = nominal_sizes(setting), setting.axes
    one = device_bytes(stream, sizes, axes, setting.precision.activations)
    time = collective_time("permute", one / (sizes["B"] * sizes["T"]), setting.mesh.group(stages))
    split = ways(stream.axes_of("B"), axes)
    where = "+".join(stages)
    return CommTerm(
        "stage", "stage", "permute", where, "tokens", split, time.bandwidth_s, time.latency_s
    )


def _merged(generate: Sequence[Phased], prefill: Sequence[Phased]) -> tuple[Phased, ...]:
    """Terms of a step of both phases: shared ones meet all tokens, attention only its own."""
    decode, chunk = ({t.op for _, t in terms} for terms in (generate, prefill))
    shared = (decode & chunk) - set(_ATTENTION)
    own = [(_PREFILL, t) for _, t in prefill if t.op not in shared]
    return (*((_BOTH if t.op in shared else _GENERATE, t) for _, t in generate), *own)


def _stages(model: ModelSpec, layout: ServingLayout, blocks: Blocks) -> tuple[Stage, ...]:
    """The terms of every pipeline stage; the last has the head."""
    order = [model.blocks.index(b) for b in model.layer_blocks]
    held = [Counter(c) for c in stage_layers(order, layout.pp)]
    held[-1][HEAD] = 1
    passed = [t for t in blocks[HEAD] if t[1].op == "stage"]
    found: list[Stage] = []
    for layers in held:
        stage = [Counted(n, phases, t) for b, n in layers.items() for phases, t in blocks[b]]
        if HEAD not in layers:
            stage += [Counted(1, phases, t) for phases, t in passed]
        found.append(tuple(stage))
    return tuple(found)
