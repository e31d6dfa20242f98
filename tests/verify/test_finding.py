"""Findings: what is worth a line, how equal ones are added up, what a collective costs."""

import pytest

from rooflight.compile.findings.finding import (
    Finding,
    Scale,
    merged,
    network_seconds,
    warning_finding,
)
from rooflight.costs.network import collective_time
from rooflight.hardware.mesh import parse_mesh

MESH = parse_mesh("X=4,Y=4", on="v5e:4x4")
SCALE = Scale(step_s=1.0, hbm_bytes=10**10)


def _finding(seconds: float | None, nbytes: int | None, where: str = "a.py:1") -> Finding:
    return Finding("wide", "words", "fix", seconds=seconds, nbytes=nbytes, where=where)


def test_what_costs_time_is_held_against_time_and_the_rest_against_memory() -> None:
    assert SCALE.is_worth(_finding(0.01, 1)) and not SCALE.is_worth(_finding(0.009, 10**10))
    assert SCALE.is_worth(_finding(None, 5 * 10**7))
    assert not SCALE.is_worth(_finding(None, 5 * 10**7 - 1))


def test_an_unknown_cost_is_never_too_small() -> None:
    assert SCALE.is_worth(_finding(None, None))


def test_equal_findings_of_a_line_are_one_and_the_dearest_comes_first() -> None:
    found = merged([_finding(0.1, 10), _finding(0.2, 20), _finding(0.25, 5, "b.py:2")])
    assert [(f.where, f.nbytes) for f in found] == [("a.py:1", 30), ("b.py:2", 5)]
    assert found[0].seconds == pytest.approx(0.3)


def test_a_collective_costs_what_the_network_model_says() -> None:
    found = network_seconds("all_gather", 2**25, ("Y",), MESH)
    assert found == collective_time("all_gather", 2**25, MESH.group("Y")).expected_s


@pytest.mark.parametrize("kind, axes", [("broadcast", ("X",)), ("all_gather", ("core",))])
def test_what_has_no_price_costs_an_unknown_time(kind: str, axes: tuple[str, ...]) -> None:
    assert network_seconds(kind, 1e6, axes, MESH) is None
    assert network_seconds("all_gather", 1e6, None, MESH) is None


def test_a_warning_of_the_partitioner_names_its_line() -> None:
    text = (
        "[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding A to B"
        ' efficiently for HLO operation %x = f32[8]{0} copy(%y), metadata={op_name="f"'
        ' source_file="/home/me/model.py" source_line=12}'
    )
    found = warning_finding(text)
    assert found.kind == "rematerialised" and found.place == "model.py:12"
    assert found.words.endswith("efficiently") and "%x" not in found.words


def test_what_does_not_fit_is_first_and_is_worth_a_line_however_little_is_missing() -> None:
    small = Finding("out_of_memory", "words", "fix", nbytes=1)
    assert merged([_finding(5.0, 10), small])[0] is small
    assert SCALE.is_worth(small)


def test_findings_alike_but_for_the_number_of_a_layer_are_one_with_a_count() -> None:
    def replicated(name: str) -> Finding:
        return Finding(
            "replicated", f"{name} is the same", f"give {name} P()", nbytes=10, where="a.py:1"
        )

    (found,) = merged(replicated(f"params['layers'][{at}]['up']") for at in range(4))
    assert (found.count, found.nbytes) == (4, 40) and "[0]['up'] is" in found.words
    assert (
        len(merged(map(replicated, ("params['layers'][0]['up']", "params['layers'][0]['q']")))) == 2
    )
    assert len(merged(map(replicated, ("bf16[64]", "bf16[128]")))) == 2
