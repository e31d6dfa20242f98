"""Expert dispatch of Collectives: tokens to the chips of their experts, by two collectives."""

from collections.abc import Sequence

from rooflight.costs.ragged import ragged_share
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.ui.browser.answer import Answer, Column, Fact, Table, show_bytes, show_seconds
from rooflight.ui.browser.hops import (
    Run,
    elsewhere,
    hops_film,
    priced_run,
    run_command,
    too_many,
    where,
)
from rooflight.ui.browser.view import Question

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


def dispatch_answer(question: Question, mesh: Mesh, axes: Sequence[str]) -> Answer:
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


def _way(name: str, run: Run, *, sent: float, kept: float) -> _Row:
    time = run.time
    return (
        *(name, time.nbytes, sent, kept, time.expected_s, run.simulated_s),
        *(2 * time.expected_s, time.binds),
    )


def _s(row: _Row) -> float:
    return row[4]
