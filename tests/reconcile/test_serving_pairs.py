"""Pairs of settings: which differ in one thing, and whether they are ordered right."""

from dataclasses import replace

from rooflight.measure.published.validation import Replay

from .serving_pairs import Setting, difference, directions_of

ONE = Setting(("vllm", "a model"), (), clients=4, tp=1, dp=1, ep=1)


def setting(clients: float = 4, **changed: int) -> Setting:
    return replace(replace(ONE, clients=clients), **changed)


def replay(id: str, measured_s: float, said_s: float) -> Replay:
    where = ("serve", "x", "h100", "together", "vllm", "dense")
    return Replay(id, *where, measured_s, said_s, spread=0.1, roof_s=1.0)


def test_settings_differ_in_clients_or_in_their_split_but_not_in_both() -> None:
    assert difference(ONE, setting(clients=8)) == "clients"
    assert difference(ONE, setting(tp=2)) == "TP"
    assert difference(setting(tp=4), setting(tp=4, ep=4)) == "EP, DP"
    assert difference(setting(tp=2), setting(dp=4, ep=4)) == "TP, EP, DP"
    assert difference(ONE, setting(tp=2, clients=8)) is None
    assert difference(ONE, replace(setting(clients=8), version="2")) is None


def test_draft_tokens_may_come_with_another_version() -> None:
    assert difference(ONE, replace(setting(drafted=3), version="2")) == "draft tokens"
    assert difference(ONE, setting(drafted=3, clients=8)) is None
    assert difference(ONE, ONE) is None


def test_workers_that_a_row_states_are_shared() -> None:
    other = Setting(ONE.shared, ("2",), clients=8, tp=1, dp=1, ep=1)
    assert difference(ONE, other) is None


def test_pairs_closer_than_noise_have_no_order_and_repeats_count_once() -> None:
    settings = {"a": ONE, "again": ONE, "b": setting(clients=8), "c": setting(clients=9)}
    measured = (("a", 1.0, 1.0), ("again", 1.21, 1.0), ("b", 1.5, 0.9), ("c", 1.52, 2.0))
    (found,) = directions_of(settings, [replay(*row) for row in measured])
    assert (found.group, found.differ) == ("dense, together", "clients")
    assert (found.pairs, found.right) == (2, 1)  # b and c are 1.3 % apart
    assert 1.3 < found.wrong_by < 1.4  # b takes 1.5, a 1.1
