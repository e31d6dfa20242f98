"""What the first verbs say, against the library and against counting by hand."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.cli.hardware.chip_facts import all_facts, chip_toml
from rooflight.cli.hardware.chips import built_in_facts
from rooflight.costs.network import KINDS, collective_time
from rooflight.hardware.catalog import chip_names, load_chip, read_chip
from rooflight.hardware.mesh import axes_of, parse_mesh
from rooflight.hardware.slice import TorusDim, parse_slice
from rooflight.hardware.totals import bisection_bytes_per_s
from rooflight.ui.answers.hardware import unit_of

from .command import run


def _as_in_the_file(value: object) -> object:
    return list(cast(tuple[int, ...], value)) if isinstance(value, tuple) else value


def test_the_fast_scan_of_the_catalog_finds_what_the_checking_reader_finds() -> None:
    checked = {
        name: {fact: _as_in_the_file(value) for fact, value in facts.items()}
        for name, facts in all_facts().items()
    }
    assert built_in_facts() == checked


@pytest.mark.parametrize("name", chip_names())
def test_a_chip_printed_as_toml_reads_back_as_the_same_chip(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(run(["chips", name, "--toml"]).out)
    assert read_chip(path) == load_chip(name)


@pytest.mark.parametrize("name", chip_names())
def test_every_fact_of_a_chip_is_shown_with_source_and_date(name: str) -> None:
    shown = run(["chips", name, "-v"]).out
    document = json.loads(run(["chips", name, "--json"]).out)["chip"]
    for fact, source in load_chip(name).sources.items():
        assert f"\n{fact} " in shown and source.checked in shown and source.url in shown
        assert document["facts"][fact]["unit"] == unit_of(fact)


def test_a_chip_of_the_users_own_joins_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dreamchip.toml").write_text(chip_toml(load_chip("v5e")))
    monkeypatch.setenv("ROOFLIGHT_CHIPS", str(tmp_path))
    assert "\ndreamchip " in run(["chips"]).out
    assert run(["slice", "dreamchip:4x4"]).code == 0


def test_a_broken_chip_file_is_named_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brokenchip.toml").write_text('title = "broken"\nkind = "toaster"\n')
    monkeypatch.setenv("ROOFLIGHT_CHIPS", str(tmp_path))
    outcome = run(["chips"])
    assert (outcome.code, outcome.out) == (2, "") and "brokenchip.toml" in outcome.err


def _links_over_the_middle(dims: list[TorusDim], cut: int) -> int:
    """Counts the links, both directions, between the halves of a torus cut across one axis."""
    half = dims[cut].size // 2
    crossing = 0
    for chip in product(*(range(d.size) for d in dims)):
        for axis, dim in enumerate(dims):
            other = list(chip)
            other[axis] += 1
            if other[axis] == dim.size:
                if not dim.wraps:
                    continue
                other[axis] = 0
            crossing += 2 * ((chip[cut] < half) != (other[cut] < half))
    return crossing


@pytest.mark.parametrize("text", ("v5e:4x4", "v5e:4x16", "v5e:16x16", "v5p:4x4x8", "v5p:2x2x4"))
def test_bisection_is_the_narrowest_middle_cut(text: str) -> None:
    target = parse_slice(text)
    dims = [d for d in target.dims if isinstance(d, TorusDim)]
    fewest = min(_links_over_the_middle(dims, i) for i, d in enumerate(dims) if d.size > 1)
    assert bisection_bytes_per_s(target) == fewest * dims[0].link_bytes_per_s


def test_slice_totals_are_chips_times_facts() -> None:
    chip = load_chip("v5p")
    document = json.loads(run(["slice", "2*v5p:4x4x4", "--json"]).out)
    assert document["num_chips"] == 128
    assert document["flops"]["bf16"] == 128 * chip.flops["bf16"]
    assert document["hbm_bytes"] == 128 * (chip.hbm_bytes or 0)


def test_a_quarter_of_a_ring_is_shown_as_a_line_and_its_outer_part_as_a_strided_ring() -> None:
    document = json.loads(run(["slice", "v5e:16x16", "--mesh", "X=4,Y=4,Z=16", "--json"]).out)
    parts = [axis["parts"][0] for axis in document["axes"]]
    assert [(p["wiring"], p["stride"]) for p in parts] == [("ring", 4), ("line", 1), ("ring", 1)]


def test_roofline_places_matmuls_on_the_side_of_the_ridge_that_binds_them() -> None:
    words = "roofline --on v5e --matmul 16x8192x8192 --matmul 8192x8192x8192 --json"
    document = json.loads(run(words.split()).out)
    small, large = document["matmuls"]
    assert small["intensity_flops_per_byte"] < document["ridge_flops_per_byte"]
    assert large["intensity_flops_per_byte"] > document["ridge_flops_per_byte"]
    assert (small["binds"], large["binds"]) == ("HBM", "MXU bf16")


def test_a_narrow_dtype_without_a_rate_says_what_it_is_computed_in() -> None:
    assert "int8 over HBM, computed in" in run(["roofline", "--on", "v3", "--dtype", "int8"]).out


def test_roofline_plot_is_a_picture_and_leaves_stdout_as_it_was(tmp_path: Path) -> None:
    words = ["roofline", "--on", "v5e", "--matmul", "16x8192x8192"]
    path = tmp_path / "plot.svg"
    assert run([*words, "--plot", str(path)]).out == run(words).out
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_ends_when_the_simulation_ends(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "hops.json"
    words = f"collective {kind.replace('_', '-')} --bytes 1MB --on v5e:2x4 --axes Y".split()
    document = json.loads(run([*words, "--trace", str(path), "--json"]).out)
    trace = json.loads(path.read_text())
    assert trace["schema"] == 1
    assert max(hop["end_s"] for hop in trace["hops"]) == document["simulated_s"]
    # The simulator and the formulas are promised to agree within 1 %.
    assert 0.99 * document["lower_s"] <= document["simulated_s"] <= 1.01 * document["upper_s"]


@pytest.mark.parametrize("on", ["v5e:2x4", "h100:8x64"])
def test_a_simulation_for_the_time_alone_agrees(on: str) -> None:
    words = f"collective all-gather --bytes 100GB --on {on} --simulate --json".split()
    document = json.loads(run(words).out)
    assert document["simulated_s"] == pytest.approx(document["expected_s"], rel=0.02)


def test_more_chips_than_can_be_simulated_are_refused() -> None:
    words = "collective all-gather --bytes 1GB --on h100:8x256 --simulate"
    refused = run(words.split())
    assert refused.code == 2
    assert "--simulate simulates at most 1,024 chips" in refused.err


def test_collective_says_what_the_library_says() -> None:
    words = "collective all-reduce --bytes 1GB --on h100:8x4 --in-network-reduction --json"
    document = json.loads(run(words.split()).out)
    group = parse_mesh(document["mesh"], on="h100:8x4").group(document["axes"])
    time = collective_time("all_reduce", 10**9, group, in_network_reduction=True)
    assert (document["expected_s"], document["binds"]) == (time.expected_s, time.binds)


@given(st.permutations(["X", "Y", "Z"]), st.integers(1, 3))
def test_axes_are_written_with_commas_or_together(names: list[str], count: int) -> None:
    mesh = parse_mesh("X=4,Y=4,Z=4", on="v5p:4x4x4")
    chosen = names[:count]
    assert axes_of(",".join(chosen), mesh) == axes_of("".join(chosen), mesh) == chosen
