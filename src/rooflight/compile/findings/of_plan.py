"""What is wrong with the program of a plan: each difference from the plan as a `Finding`."""

from collections.abc import Iterable, Iterator, Sequence

from rooflight.compile.aot.run import Compilation
from rooflight.compile.expected.match import Matching, Missing, Surplus
from rooflight.compile.findings.finding import Finding, network_seconds
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.time.step import CompiledTime
from rooflight.hardware.mesh import Mesh
from rooflight.plan.file.record import Time
from rooflight.units import format_count, format_seconds, format_si

_LEAST_SHARE = 0.01  # of the planned step; what waits less is not worth a line


def compile_findings(done: Iterable[Compilation]) -> Iterator[Finding]:
    """Compiles that did not get through."""
    for one in done:
        if one.is_good:
            continue
        over = one.out_of_memory
        yield Finding(
            one.outcome.replace(" ", "_"),
            f"the compiler: {one.outcome}",
            "plan for more chips, fewer tokens per device or a remat policy that keeps less"
            if over
            else f"read what it said: {one.last_words}",
            nbytes=over.needed_bytes - over.limit_bytes if over else None,
        )


def matching_findings(matching: Matching, mesh: Mesh) -> Iterator[Finding]:
    """Collectives that are missing, then those that nothing expects, with the network's price."""
    for missing in matching.missing:
        yield _missing(missing, matching.surprises)
    for surplus in matching.surprises:
        yield _unexpected(surplus, matching.missing, mesh)


def _missing(missing: Missing, surprises: Sequence[Surplus]) -> Finding:
    expected = missing.expected
    instead = [s.collective.name for s in surprises if s.op == expected.op]
    return Finding(
        "missing",
        f"missing: {expected.because}",
        f"see what {expected.op} does instead: {', '.join(instead)}"
        if instead
        else f"constrain the operands of {expected.op} as the step says",
        nbytes=missing.nbytes,
    )


def _unexpected(surplus: Surplus, missing: Sequence[Missing], mesh: Mesh) -> Finding:
    found = surplus.collective
    each = network_seconds(found.kind, found.nbytes, found.axes, mesh)
    wanted = [m.expected.because for m in missing if m.expected.op == surplus.op]
    times = "unknown" if surplus.count is None else format_count(surplus.count)
    axes = "+".join(found.axes or ("unknown axes",))
    what = f"{found.kind.replace('_', '-')} over {axes} of {format_si(found.nbytes, 'B')}"
    return Finding(
        "unexpected",
        f"not expected: {found.name}, {what}, {times} times",
        f"the plan has {wanted[0]} there: constrain the operands so"
        if wanted
        else f"constrain the operands of {surplus.op or 'this line'} as the layout says",
        seconds=None if each is None or surplus.count is None else each * surplus.count,
        nbytes=surplus.nbytes,
        where=found.source,
    )


def stored_finding(name: str, nbytes: int, expected_bytes: int) -> Finding:
    """An argument of which a device holds more than planned."""
    return Finding(
        "replicated",
        f"{name} is larger than planned",
        f"give its sharding the axes of the layout: {format_si(expected_bytes, 'B')} per device,"
        f" not {format_si(nbytes, 'B')}",
        nbytes=nbytes - expected_bytes,
    )


def absent_finding(name: str) -> Finding:
    return Finding(
        "absent",
        f"{name} must be an argument of the program, got none",
        "name the state as `expected_state` of rooflight.compile.aot.state does",
    )


def remat_findings(policy: str, recompute_flops: int | None) -> Iterator[Finding]:
    """A policy that the program has lost, or has without the plan; collectives do not show it.

    Policies between all and nothing recompute what has no matmuls, or only some.
    """
    if recompute_flops is None or policy not in ("none", "block"):
        return
    if (policy == "block") == (recompute_flops > 0):
        return
    done = "no matmul is recomputed" if policy == "block" else "matmuls are recomputed"
    yield Finding(
        "remat",
        f"the plan has remat {policy}, and {done} in the backward pass",
        "wrap the layer in jax.checkpoint: without it every activation is saved"
        if policy == "block"
        else "take jax.checkpoint off the layer, or plan with the policy that it has",
    )


def exposed_findings(
    planned: Time, time: CompiledTime, collectives: Sequence[Collective]
) -> Iterator[Finding]:
    """Collectives that the plan hides behind matmuls, and for which the schedule has it wait.

    The plan's own wait is what its step takes beyond matmuls and bubble. `collectives` are those
    of the schedule; the line is that of the ones with the most bytes among those with no work.
    """
    waits = max(0.0, planned.roofline_s - planned.matmuls_s - planned.bubble_s)
    exposed = sum(network.exposed_s for network in time.network.values())
    if exposed - waits < _LEAST_SHARE * planned.roofline_s:
        return
    alone = [c for c in collectives if c.is_exposed]
    most = max(alone, key=lambda c: c.bytes_per_step or 0, default=None)
    on_them = ", ".join(
        f"{format_seconds(network.exposed_s)} over {axes}"
        for axes, network in time.network.items()
        if network.exposed_s >= _LEAST_SHARE * planned.roofline_s
    )
    yield Finding(
        "exposed",
        f"the chip waits {on_them} for collectives; planned: {format_seconds(waits)} in all",
        "take a layout with fewer collectives, or this time as the step's; most bytes wait in"
        f" {_described(most)}"
        if most
        else "see in --html where the schedule has too little work between start and done",
        seconds=exposed - waits,
        where=most.source if most else "",
    )


def _described(found: Collective) -> str:
    axes = "+".join(found.axes or ("unknown axes",))
    times = "unknown" if found.count is None else format_count(found.count)
    kind = found.kind.replace("_", "-")
    return f"{found.name}, {kind} over {axes} of {format_si(found.nbytes, 'B')}, {times} times"
