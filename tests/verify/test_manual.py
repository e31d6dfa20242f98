"""Work inside `jax.shard_map` is a part of the whole, repeated only where devices do alike."""

import importlib.util
from pathlib import Path

import pytest

from rooflight.compile.aot.program import verify_program
from rooflight.hardware.mesh import parse_mesh

HERE = Path(__file__).parent
MESH = parse_mesh("X=2,Y=4", on="v5e:2x4")


@pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
def test_only_what_devices_of_an_axis_really_do_alike_is_repeated(tmp_path: Path) -> None:
    verdict = verify_program(
        "manual_regions:build", MESH, until="partitioned", folder=str(HERE), cache=tmp_path
    )
    found = {f.place: f for f in verdict.findings if f.kind == "repeated"}
    lines = (HERE / "manual_regions.py").read_text().splitlines()
    marked = [at for at, text in enumerate(lines, 1) if text.endswith("# alike over Y")]
    assert [*sorted(found)] == [f"manual_regions.py:{at}" for at in marked]
    inside, outside = (found[f"manual_regions.py:{at}"] for at in marked)
    for finding in (inside, outside):
        assert "done 4 times over, alike on every device of Y" in finding.words
    assert "in in_specs" in inside.fix and "in in_specs" not in outside.fix
