"""The comparison of two trees sees what differs, and only that."""

from benchmarks.trees import commands, differences


def test_numbers_and_keys_that_differ_are_named() -> None:
    old = {"time": {"matmuls_s": 1.0, "mfu": 0.5}, "rows": [1, 2]}
    new = {"time": {"matmuls_s": 1.0, "mfu": 0.5 + 1e-6}, "rows": [1, 3]}
    found = list(differences(old, new, {"matmuls_s": "matmuls_s"}))
    assert found == [".time.mfu: 0.5 -> 0.500001", ".rows[1]: 2 -> 3"]
    assert list(differences(old, old, {})) == []
    assert list(differences({"a": 1}, {"b": 1}, {})) == [
        ".a is only in the old",
        ".b is only in the new",
    ]


def test_every_room_of_a_question_is_asked() -> None:
    asked = list(commands())
    assert len(set(asked)) == len(asked) > 250
    assert {text.split()[0] for text in asked} >= {
        "plan",
        "fit",
        "forecast",
        "simulate",
        "frontier",
    }
