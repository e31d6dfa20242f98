"""The comparison of two trees sees what differs, and only that."""

from benchmarks.asked import commands
from benchmarks.trees import MORE, WORDED, cause_of, differences, renamed, summary, text

OLD = {"document": {"time": {"products_s": 1.0, "mfu": 0.5}, "rows": [1, 2], "why": "2 a step"}}


def test_numbers_and_keys_that_differ_are_named() -> None:
    new = {"document": {"time": {"matmuls_s": 1.0, "mfu": 0.5 + 1e-6}, "rows": [1, 3], "b": 1}}
    found = [(one.at.removeprefix(".document"), one.is_more) for one in differences(OLD, new)]
    assert found == [(".time.mfu", False), (".rows[]", False), (".why", False), (".b", True)]
    assert list(differences(OLD, OLD)) == []
    assert list(renamed(OLD)) == ["products_s"]


def test_rows_are_told_by_their_layout() -> None:
    old, new = ({"curves": [{"layout": "tp=4,pp=2", "step_s": s}]} for s in (1.0, 2.0))
    (found,) = differences(old, new)
    assert found.at == ".curves[tp=4,pp=2].step_s"
    assert "one by one" in cause_of("frontier llama3-8b", found)
    assert not cause_of("simulate llama3-8b", found)


def test_a_sentence_may_be_worded_otherwise_but_not_its_figures() -> None:
    old, *news = (
        {"why": f"{n} tokens {per} step"} for n, per in ((2, "a"), (2, "per"), (3, "per"))
    )
    worded, other = (next(differences(old, new)) for new in news)
    assert cause_of("fit", worded) == WORDED
    assert not cause_of("fit", other)


def test_what_has_no_cause_is_counted_and_told() -> None:
    new = {
        "document": {"time": {"matmuls_s": 2.0, "mfu": 0.5}, "rows": [1, 2], "why": "2 per step"}
    }
    found = summary({"fit x": OLD}, {"fit x": new | {"more": 1}})
    assert found["odd"] == ["fit x: .time.matmuls_s: 1.0 -> 2.0"]
    assert found["verbs"]["fit"] == {"asked": 1, "values": 5, "differ": 2}
    assert set(found["causes"]) >= {MORE, WORDED, "unexplained"}
    assert "unexplained" in text(found)


def test_every_kind_of_question_is_asked() -> None:
    asked = [" ".join(words) for words in commands()]
    assert len(set(asked)) == len(asked) > 250
    assert {words.split()[0] for words in asked} >= {
        *("plan", "fit", "explain", "forecast", "simulate", "frontier", "matmul", "collective"),
        *("roofline", "pipeline", "model", "mfu", "budget", "hlo", "profile", "book", "chips"),
    }
