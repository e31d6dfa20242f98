"""The switched tiers have the book as their oracle: each formula, 5 % wrong, must be found."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rooflight.book.entry import entries
from rooflight.book.solve import solve
from rooflight.costs import network
from rooflight.costs.network import TierTime, collective_time
from rooflight.hardware.mesh import parse_mesh

Tiers = tuple[TierTime, ...]


def unexplained() -> list[str]:
    """Entries of the book about GPU collectives that do not come out."""
    chosen = [e for e in entries() if e.kind == "collective" and e.id.startswith("gpus.")]
    assert len(chosen) >= 15
    return [e.id for e in chosen if solve(e).status == "unexplained"]


def scaled(tiers: Callable[..., Tiers], field: str) -> Callable[..., Tiers]:
    def wrong(*args: object, **kwargs: object) -> Tiers:
        return tuple(
            replace(t, **{field: 1.05 * getattr(t, field)}) for t in tiers(*args, **kwargs)
        )

    return wrong


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("gather_tiers", "bandwidth_s"),
        ("gather_tiers", "rule_s"),
        ("exchange_tiers", "bandwidth_s"),
        ("exchange_tiers", "rule_s"),
        ("reduce_in_network_tiers", "bandwidth_s"),
    ],
)
def test_a_tier_five_percent_wrong_is_found_by_the_book(
    name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not unexplained()
    monkeypatch.setattr(network, name, scaled(getattr(network, name), field))
    assert unexplained()


def test_a_shift_crosses_the_outermost_tier_at_the_rate_of_one_chip() -> None:
    group = parse_mesh("X=4,Y=8", on="h100:8x4").group("X")
    chip = group.fans[0]
    shift = collective_time("permute", 1e9, group)
    assert shift.bandwidth_s == pytest.approx(1e9 * 8 / chip.egress_bytes_per_s)
