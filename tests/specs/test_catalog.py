"""The hardware catalog: every file loads, every fact has a source, the facts agree."""

import math
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.errors import ParseError, UnknownNameError, UsageError
from rooflight.hardware import catalog as catalog_module
from rooflight.hardware.catalog import chip_names, load_chip, read_chip
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import parse_slice

CATALOG = Path(catalog_module.__file__).parent / "catalog"
TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
HOPPERS = ("h100", "h200", "h800", "gh200", "gh200-144gb")  # with all SMs at one clock
AMD = ("mi300x", "mi325x", "mi350x", "mi355x")
GPUS = (*HOPPERS, *AMD, "v100", "a100", "h20", "h200-nvl", "b200", "b300", "gb200", "gb300")
ACCELERATORS = (*TPUS, *GPUS)
FLOATS = ("f64", "f32", "tf32", "bf16", "f16", "fp8", "fp4")
INTEGERS = ("int8", "int4")


def half_width_rate(chip: Chip) -> float:
    """The 16-bit matmul rate: bf16, or f16 on the chips from before bf16."""
    return chip.flops.get("bf16") or chip.flops["f16"]


def test_the_catalog_holds_the_promised_chips() -> None:
    assert set(chip_names()) >= {*ACCELERATORS, "this-host"}


@pytest.mark.parametrize("name", ACCELERATORS)
def test_the_facts_every_cost_needs_are_there(name: str) -> None:
    chip = load_chip(name)
    assert chip.kind == ("tpu" if name in TPUS else "gpu")
    assert chip.hbm_bytes and chip.hbm_bytes_per_s and chip.matrix_unit
    assert (chip.torus is None) != (chip.switched is None)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_fact_has_a_source_with_title_url_and_date(name: str) -> None:
    chip = load_chip(name)
    assert chip.source_of("hbm_bytes") is not None
    for source in chip.sources.values():
        assert len(source.title) > 10
        assert source.url.startswith("https://")
        date.fromisoformat(source.checked)


def test_this_host_loads_with_every_rate_unknown() -> None:
    chip = load_chip("this-host")
    assert chip.kind == "cpu" and not chip.flops and not chip.sources
    assert chip.hbm_bytes is None and chip.hbm_bytes_per_s is None
    assert parse_slice("this-host").num_chips == 1
    with pytest.raises(UsageError, match="no bf16 rate"):
        chip.peak_flops("bf16")


@pytest.mark.parametrize("name", ACCELERATORS)
def test_the_matrix_units_make_the_16_bit_rate(name: str) -> None:
    chip = load_chip(name)
    assert chip.matrix_unit is not None
    assert math.isclose(chip.matrix_unit.peak_flops, half_width_rate(chip), rel_tol=0.1)


@pytest.mark.parametrize("name", GPUS)
def test_the_dense_rate_is_half_of_the_sparse_one(name: str) -> None:
    chip = load_chip(name)
    if "bf16_flops_sparse" in chip.detail:
        sparse = chip.detail["bf16_flops_sparse"]
        assert math.isclose(2 * chip.flops["bf16"], sparse, rel_tol=1e-3)


def test_the_sparse_rates_are_recorded_where_they_mislead_most() -> None:
    assert {n for n in GPUS if "bf16_flops_sparse" in load_chip(n).detail} >= {"a100", "h100"}


@pytest.mark.parametrize("name", ACCELERATORS)
@pytest.mark.parametrize("family", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_a_narrower_dtype_is_never_slower_in_its_family(name: str, family: tuple[str, ...]) -> None:
    # Families apart: Blackwell Ultra really has int8 slower than bf16.
    rates = load_chip(name).flops
    known = [d for d in family if d in rates]
    for wide in known:
        for narrow in known:
            if DTYPES[narrow].bits < DTYPES[wide].bits:
                assert rates[narrow] >= rates[wide], (narrow, wide)


@pytest.mark.parametrize("name", TPUS)
def test_a_tpu_pod_is_whole_hosts_and_has_one_wrap_rule(name: str) -> None:
    chip = load_chip(name)
    torus = chip.torus
    assert torus is not None
    assert len(torus.pod_shape) == torus.dims == len(chip.host_shape)
    assert all(p % h == 0 for p, h in zip(torus.pod_shape, chip.host_shape, strict=True))
    assert (torus.wrap_axis is None) != (torus.wrap_cube is None)


@pytest.mark.parametrize("name", TPUS)
def test_the_compiler_limit_is_near_the_capacity(name: str) -> None:
    # Capacity reads GB, the limit counts GiB less what the runtime keeps: within 10 %.
    chip = load_chip(name)
    assert chip.hbm_bytes is not None
    assert math.isclose(chip.detail["hbm_usable_bytes"], chip.hbm_bytes, rel_tol=0.1)


@pytest.mark.parametrize("name", GPUS)
def test_nvlink_ports_add_up_to_the_egress(name: str) -> None:
    chip = load_chip(name)
    assert chip.switched is not None
    if "nvlink_ports" in chip.detail:
        ports = chip.detail["nvlink_ports"] * chip.detail["nvlink_port_bytes_per_s"]
        assert ports == chip.switched.chip_egress_bytes_per_s
    assert chip.switched.chip_egress_bytes_per_s > chip.switched.nic_bytes_per_s


@pytest.mark.parametrize("name", AMD)
def test_the_links_to_the_seven_others_add_up_to_the_egress(name: str) -> None:
    chip = load_chip(name)
    assert chip.switched is not None and chip.switched.domain_chips == 8
    links = chip.detail["infinity_links"] * chip.detail["infinity_link_bytes_per_s"]
    assert chip.detail["infinity_links"] == 7
    assert links == chip.switched.chip_egress_bytes_per_s


@pytest.mark.parametrize("name", HOPPERS)
def test_the_same_die_has_the_same_rates(name: str) -> None:
    h100, chip = load_chip("h100"), load_chip(name)
    assert chip.matrix_unit == h100.matrix_unit and chip.cores == h100.cores
    for dtype in ("tf32", "bf16", "f16", "fp8", "int8"):
        assert chip.flops[dtype] == h100.flops[dtype]


def test_kernels_of_four_bit_floats_compute_in_16_bits_where_the_chip_has_no_fp4() -> None:
    found = {name: load_chip(name).matmul_dtype("mxfp4") for name in ("h100", "b200", "v5e")}
    assert found == {"h100": "bf16", "b200": "fp4", "v5e": "bf16"}
    assert load_chip("a100").matmul_dtype("fp8") == "bf16"


def test_assumptions_are_titled_as_such() -> None:
    for name in GPUS:
        source = load_chip(name).source_of("switched.fabric_hop_s")
        assert source is not None and "ASSUMPTION" in source.title
    guessed = load_chip("v100").source_of("switched.hop_s")
    assert guessed is not None and "ASSUMPTION" in guessed.title


def test_chips_have_other_names() -> None:
    assert load_chip("ironwood") == load_chip("tpu7x") == load_chip("7X")
    assert load_chip("tpu-v5e") == load_chip("v5litepod")


def test_an_unknown_chip_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_chip("h10")
    assert "`h100`" in caught.value.hint


MINE = """
title = "My chip"
kind = "tpu"
[sources.me]
title = "measured on a bench"
url = "https://example.org"
checked = "2026-01-02"
[facts]
hbm_bytes = [1000, "me"]
host_shape = [[2], "me"]
[facts.flops]
bf16 = [1e12, "me"]
[facts.torus]
dims = [1, "me"]
link_bytes_per_s = [1e9, "me"]
hop_s = [1e-6, "me"]
pod_shape = [[8], "me"]
wrap_axis = [8, "me"]
"""


@pytest.fixture
def my_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's own chip file, on the path for one test."""
    path = tmp_path / "mychip.toml"
    path.write_text(MINE)
    monkeypatch.setenv("ROOFLIGHT_CHIPS", str(path))
    load_chip.cache_clear()
    yield path
    load_chip.cache_clear()  # the cache outlives the environment variable


def test_a_user_adds_a_chip_by_file(my_chip: Path) -> None:
    assert chip_names()[-1] == my_chip.stem
    assert load_chip("mychip").title == "My chip"
    assert parse_slice("mychip:8").wraps == (True,)


def test_a_user_adds_chips_by_folder(my_chip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLIGHT_CHIPS", str(my_chip.parent))
    load_chip.cache_clear()
    assert load_chip("mychip").flops == {"bf16": 1e12}


def test_a_missing_user_file_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFLIGHT_CHIPS", str(tmp_path / "gone.toml"))
    load_chip.cache_clear()
    with pytest.raises(ParseError, match=r"gone\.toml"):
        load_chip("gone")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ('hbm_bytes = [inf, "me"]', "hbm_bytes"),
        ('hbm_bytes = [-1, "me"]', "hbm_bytes"),
        ('hbm_bytes = ["many", "me"]', "hbm_bytes"),
        ('hbm_bytes = [1000, ["me"]]', "source one of: me"),
        ('hbm_bytes = [1000, "you"]', "source one of: me"),
        ("hbm_bytes = 1000", "source one of: me"),
        ('hmb_bytes = [1000, "me"]', "does not know the fact 'hmb_bytes'"),
        ("hbm_bytes = " + "[" * 3000, "cannot read"),
        ("hbm_bytes = [1" + "0" * 5000 + ', "me"]', "cannot read"),
        ("hbm_bytes = [1" + "0" * 400 + ', "me"]', "hbm_bytes"),
    ],
)
def test_a_wrong_fact_is_named(tmp_path: Path, broken: str, says: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(MINE.replace('hbm_bytes = [1000, "me"]', broken))
    with pytest.raises(ParseError, match=re.escape(says)):
        read_chip(path)


SAMPLES = [(CATALOG / f"{name}.toml").read_text() for name in ("v5e", "h100")] + [MINE]
SNIPPETS = (
    "[",
    "]",
    '"',
    "=",
    ",",
    "-",
    "0",
    "inf",
    "nan",
    "true",
    "\n",
    "{}",
    "[[]]",
    "\x00",
    "\u00e9",
)


@given(
    sample=st.sampled_from(SAMPLES),
    at=st.floats(0, 1),
    cut=st.integers(0, 12),
    put=st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=4)),
)
def test_a_mutated_chip_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, sample: str, at: float, cut: int, put: str
) -> None:
    index = int(at * len(sample))
    path = tmp_path_factory.getbasetemp() / "mutated.toml"
    path.write_bytes((sample[:index] + put + sample[index + cut :]).encode("utf-8", "replace"))
    try:
        chip = read_chip(path)
    except (ParseError, UnknownNameError) as refusal:  # an unknown dtype is a wrong name
        assert refusal.hint
    else:
        assert chip.name == "mutated"
