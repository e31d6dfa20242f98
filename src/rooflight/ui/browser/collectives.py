"""Collectives: hops on the links as the simulator runs them, beside the time of the formula.

The numbers are those of `rooflight collective`. Expert dispatch sends tokens to the chips of their
experts in two ways: each to those that want it (all-to-all), or all to all (all-gather).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflight.costs.network import CollectiveKind, ragged_share
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, axes_of, mesh_of
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Table,
    show_bytes,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.answers.sharded import collective_answer
from rooflight.ui.browser.hops import (
    HopsResult,
    effort,
    elsewhere,
    hops_film,
    priced_run,
    run_command,
    too_many,
    where,
)
from rooflight.ui.browser.view import Field, View, ViewQuery

_MOST_CHIPS = 1_000_000  # of the formula
_DISPATCH = "expert-dispatch"
_KINDS: dict[str, CollectiveKind] = {
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
}


def answer(question: ViewQuery) -> Answer:
    """The time of a collective, and its hops where they can be watched."""
    on = question.slice("on")
    if on.num_chips > _MOST_CHIPS:
        raise UsageError(f"{on} has more than a million chips", hint="ask for v5e:16x16")
    mesh = mesh_of(question.text("mesh") or None, on)
    axes = axes_of(question.text("axes") or None, mesh)
    if question.text("kind") == _DISPATCH:
        return dispatch_answer(question, mesh, axes)
    run = priced_run(_KINDS[question.text("kind")], question.count("bytes"), mesh, axes)
    return _answer(run)


def _answer(run: HopsResult) -> Answer:
    said = collective_answer(run.time, run.mesh, run.axes, simulated_s=run.simulated_s)
    return replace(
        said,
        sentences=(said.sentences[0], where(run), *too_many(run)),
        facts=(*said.facts, *_simulated(run)),
        films=(hops_film(run),) if run.seen else (),
        links=elsewhere(run),
        command=run_command(run),
    )


def _simulated(run: HopsResult) -> Iterator[Fact]:
    if run.seen:
        seen = run.seen.result
        ratio = seen.seconds / run.time.expected_s
        yield Fact("simulated_s", "simulated", seen.seconds, show_seconds, effort(run))
        yield Fact("simulated_over_formula", "of the formula", ratio, show_share)
        yield Fact("utilisation", "busiest link", seen.utilisation, show_share, "of the time")
        yield Fact("link_bytes", "it carries", seen.max_link_bytes, show_bytes)
        yield Fact("hops", "hops", len(seen.hops), show_count, "messages over a link")


_POWERS = tuple(str(2**n) for n in range(7, 21))
_BYTES = tuple(f"{n}{unit}" for unit in ("kB", "MB", "GB") for n in (1, 4, 16, 64, 256))

VIEW = View(
    "collectives",
    "Collectives",
    "Hops on ring, line, torus and switches, one by one; expert dispatch beside broadcast.",
    (
        Field("kind", "Collective", "choice", "all-gather", choices=(*_KINDS, _DISPATCH)),
        Field(
            *("bytes", "Bytes", "count", "34MB", "of the whole array, as if it were not split"),
            stops=_BYTES,
            most=1e15,
            when=("kind", *_KINDS),
        ),
        Field(
            *("tokens", "Tokens", "count", "4096", "of all chips together"),
            stops=_POWERS,
            most=1e9,
            when=("kind", _DISPATCH),
        ),
        Field("d", "D", "count", "4096", "numbers in a token", most=1e6, when=("kind", _DISPATCH)),
        Field(
            *("k", "Experts a token", "count", "2"),
            stops=("1", "2", "4", "8", "16"),
            most=1024,
            when=("kind", _DISPATCH),
        ),
        Field(
            *("dtype", "Dtype", "choice", "bf16", "of a token"),
            choices=tuple(DTYPES),
            when=("kind", _DISPATCH),
        ),
        Field(
            *("on", "Slice", "text", "v5e:16x1", "16x1 is a ring, 8x1 a line, 4x4 a mesh"),
            choices=("v5e:16x1", "v5e:8x1", "v5e:4x4", "v5p:4x4x4", "h100:8", "h100:4x2"),
        ),
        Field(
            *("mesh", "Mesh", "text", "", "X=4,Y=4; empty: an axis for each dim of the slice"),
            is_optional=True,
        ),
        Field("axes", "Over", "text", "", "mesh axes; empty: all", is_optional=True),
    ),
    answer,
)


# Expert dispatch of Collectives: tokens to the chips of their experts, by two collectives.

_WAYS = (
    Column("way", "tokens go by"),
    Column("nbytes", "array", show_bytes),
    Column("sent_bytes", "sent by a chip", show_bytes),
    Column("received_bytes", "kept by a chip", show_bytes),
    Column("expected_s", "time", show_seconds),
    Column("simulated_s", "simulated", show_seconds),
    Column("there_and_back_s", "there and back", show_seconds),
    Column("binds", "bound by"),
)


def dispatch_answer(question: ViewQuery, mesh: Mesh, axes: Sequence[str]) -> Answer:
    """Tokens of all chips to the chips of their experts: to each that wants them, or to all.

    Of k even choices among n chips n (1 - (1 - 1/n)^k) differ, and a copy goes to each of those.
    """
    tokens, width, k = (question.count(name) for name in ("tokens", "d", "k"))
    dtype, chips = question.dtype("dtype"), mesh.group(axes).size
    if chips < 2:
        raise UsageError(
            f"axes {','.join(axes)} of {mesh.slice} are one chip, which sends nothing",
            hint="ask for v5e:16x1",
        )
    array = dtype.nbytes(tokens * width)
    copies = chips * ragged_share(k, chips)
    exchange = priced_run("all_to_all", array * copies, mesh, axes)
    gather = priced_run("all_gather", array, mesh, axes)
    rows = (
        _way("all-to-all", exchange, sent=array * copies / chips, kept=array * copies / chips),
        _way("broadcast (all-gather)", gather, sent=array / chips, kept=float(array)),
    )
    best, other = sorted((exchange, gather), key=lambda run: run.time.expected_s)
    films = [(exchange, "exchange"), (gather, "broadcast")]
    return Answer(
        sentences=(
            f"{best.name} is faster by {other.time.expected_s / best.time.expected_s:.3g}x:"
            f" {show_seconds(best.time.expected_s)} against {show_seconds(other.time.expected_s)}",
            f"{tokens:,} tokens of {width:,} {dtype.name} numbers on {chips} chips; each wants"
            f" {k} experts, which are on {copies:.3g} chips on average. The way back takes as"
            " long: the same exchange, or a reduce-scatter.",
            where(exchange),
            *too_many(exchange),
        ),
        facts=(
            Fact("exchange_s", "all-to-all", exchange.time.expected_s, show_seconds),
            Fact("broadcast_s", "broadcast", gather.time.expected_s, show_seconds),
            Fact("copies", "copies of a token", copies, lambda c: f"{c:.3g}", f"of {chips} chips"),
            Fact("token_bytes", "all tokens", array, show_bytes),
        ),
        tables=(
            Table("ways", "Both ways to dispatch", _WAYS, rows, rows.index(min(rows, key=_s))),
        ),
        films=tuple(hops_film(run, key) for run, key in films if run.seen),
        links=elsewhere(exchange),
        command=run_command(exchange),
    )


_Row = tuple[str, float, float, float, float, float | None, float, str]


def _way(name: str, run: HopsResult, *, sent: float, kept: float) -> _Row:
    time = run.time
    return (
        *(name, time.nbytes, sent, kept, time.expected_s, run.simulated_s),
        *(2 * time.expected_s, time.binds),
    )


def _s(row: _Row) -> float:
    return row[4]
