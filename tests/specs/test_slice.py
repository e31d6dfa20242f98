"""Slices: the text form, wraparound, hosts, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import ParseError, PlacementError, RooflightError, UnknownNameError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import Slice, SwitchDim, parse_slice

GPUS = ("a100", "h100", "gb200", "gh200", "mi300x", "h200-nvl")
TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
# Of the pages of Cloud TPU on v5p, v4, v5e and v6e (2026-11-17), by chips; 2x2x4 and some of whole
# cubes are the defaults of AI-Hypercomputer/xpk, commit 367c838253.
PUBLISHED = {
    "v5p": "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24"
    " 4x4x12 4x4x20 4x8x12 4x4x28 4x12x12 4x8x20 8x8x12 4x12x20 12x16x24 12x20x20 16x20x28",
    "v4": "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16",
    "v5e": "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16",
    "v6e": "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16",
    "tpu7x": "2x2x1 2x2x2 2x2x4 2x4x4 12x12x12 16x16x32 16x24x24 4x12x116",
}


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """Any slice the catalog allows, one or several over DCN."""
    chip = load_chip(draw(st.sampled_from(["v2", "v4", "v5e", "v5p", "tpu7x", "h100", "gb200"])))
    if chip.torus:
        shape = tuple(draw(st.integers(1, min(n, 16))) for n in chip.torus.pod_shape)
    else:
        assert chip.switched is not None
        gpus = draw(st.integers(1, chip.switched.domain_chips))
        shape = (gpus, draw(st.integers(1, 64)))
    return Slice(chip, shape, draw(st.integers(1, 4)))


@given(slices())
def test_parse_undoes_print(one: Slice) -> None:
    assert parse_slice(str(one)) == one


@given(slices(), st.sampled_from([1, 4]))
def test_a_slice_has_as_many_chips_as_its_number_says(one: Slice, times: int) -> None:
    number = times * one.chips_per_slice
    for text in (f"{one.chip.name}:{number}", f"{number}x{one.chip.name}"):
        try:
            found = parse_slice(text)
        except PlacementError:
            continue  # not every number has a slice
        assert found.num_chips == number and parse_slice(str(found)) == found


@given(st.sampled_from(GPUS), st.integers(1, 5000))
def test_gpus_fill_their_domains_or_the_nearest_numbers_are_named(name: str, count: int) -> None:
    domain = load_chip(name).switched
    assert domain
    try:
        one = parse_slice(f"{name}:{count}")
    except PlacementError as error:
        near = [parse_slice(word) for word in error.hint.removeprefix("write ").split(" or ")]
        below, above = (s.num_chips for s in near)
        assert below < count < above == below + domain.domain_chips
    else:
        assert one.num_chips == count and one.shape[0] == min(count, domain.domain_chips)


@given(st.sampled_from(TPUS), st.integers(1, 9216))
def test_chips_of_a_torus_have_a_shape_or_the_nearest_are_named(name: str, count: int) -> None:
    torus = load_chip(name).torus
    assert torus
    try:
        one = parse_slice(f"{name}:{count}")
    except PlacementError as error:
        near = [parse_slice(w.split()[-1]).num_chips for w in error.hint.split(" or ")]
        if count > math.prod(torus.pod_shape):
            assert near[0] >= count  # of several slices
        else:
            assert near[0] < count < near[-1] or near[0] == near[-1]
    else:
        assert one.num_chips == count and one.num_slices == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_number_of_chips_has_the_shape_that_google_lists(name: str) -> None:
    for text in PUBLISHED[name].split():
        shape = tuple(map(int, text.split("x")))
        assert parse_slice(f"{name}:{math.prod(shape)}").shape == shape


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("h100:2048", "h100:8x256"),
        ("h100x64", "h100:8x8"),
        ("64xh100", "h100:8x8"),
        ("h100*64", "h100:8x8"),
        ("64*h100", "h100:8x8"),
        ("4*h100", "h100:4"),
        ("h100:4", "h100:4"),
        ("gb200:64", "gb200:64"),
        ("gb200:576", "gb200:72x8"),
        ("gh200:64", "gh200:1x64"),
        ("mi300x8", "mi300x:8"),
        ("8xmi300x", "mi300x:8"),
        ("v5p:512", "v5p:8x8x8"),
        ("v5p:8960", "v5p:16x20x28"),
        ("v5p-1024", "v5p:8x8x8"),
        ("v5p-8", "v5p:2x2x1"),
        ("v4-4096", "v4:8x16x16"),
        ("v3-2048", "v3:32x32"),
        ("tpu7x-128", "tpu7x:4x4x4"),
        ("v5litepod-16", "v5e:4x4"),
        ("v5e-256", "v5e:16x16"),
        ("v6e-8", "v6e:2x4"),
        ("2*v5p-512", "2*v5p:4x8x8"),
        ("2*v5e:16x16", "2*v5e:16x16"),
        ("4*v5e", "4*v5e:1x1"),
    ],
)
def test_a_slice_is_understood_in_the_ways_that_people_write_it(text: str, means: str) -> None:
    assert str(parse_slice(text)) == means


@pytest.mark.parametrize("text", ["h100x64:8x8", "64xh100:8", "2xv5p-512", "h100x0", "v5p:0"])
def test_a_size_that_is_given_twice_or_zero_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_slice(text)
    assert caught.value.hint


def test_an_odd_number_of_tensorcores_is_refused() -> None:
    with pytest.raises(ParseError, match="TensorCores") as caught:
        parse_slice("v5p-127")
    assert parse_slice(caught.value.hint.split()[-1]).num_chips == 8960
    with pytest.raises(ParseError) as caught:
        parse_slice("h100-64")  # no name of Google's
    assert parse_slice(caught.value.hint.split()[-1]).num_chips == 64


@pytest.mark.parametrize("text", ["h10x64", "v5pp-8", "64xh10", "foo"])
def test_a_chip_that_nobody_knows_is_named_in_any_form(text: str) -> None:
    with pytest.raises(UnknownNameError):
        parse_slice(text)


@given(slices())
def test_the_dims_multiply_to_the_chips(one: Slice) -> None:
    if one.num_slices == 1 or one.chip.dcn_bytes_per_s_per_host:
        assert math.prod(d.size for d in one.dims) == one.num_chips


@given(slices())
def test_hosts_hold_all_chips_with_none_to_spare(one: Slice) -> None:
    room = one.num_hosts * one.chip.host_chips
    assert one.num_chips <= room < one.num_chips + one.num_slices * one.chip.host_chips


@pytest.mark.parametrize(
    ("text", "wraps"),
    [
        ("v5e:16x16", (True, True)),
        ("v5e:8x16", (False, True)),
        ("v5e:4x4", (False, False)),
        ("v6e:16x4", (True, False)),
        ("v5p:2x2x4", (False, False, False)),
        ("v5p:4x4x4", (True, True, True)),
        ("v5p:4x4x8", (True, True, True)),
        ("v5p:16x20x28", (True, True, True)),
        ("v4:4x4x6", (False, False, False)),
        ("tpu7x:4x4x576", (True, True, True)),
        ("v3:32x32", (True, True)),
        ("v3:16x16", (False, False)),
        ("v2:16x16", (True, True)),
        ("h100:8x4", ()),
    ],
)
def test_wraparound_follows_the_generation(text: str, wraps: tuple[bool, ...]) -> None:
    assert parse_slice(text).wraps == wraps


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("v5e:16x16", 32),
        ("v5p:16x20x28", 2240),
        ("v5e:2x2", 1),
        ("v5e", 1),
        ("2*v5e:16x16", 64),
        ("v3:2x2", 1),
        ("h100:8x128", 128),
        ("gb200:72x8", 144),
    ],
)
def test_hosts_are_counted_in_chips(text: str, hosts: int) -> None:
    assert parse_slice(text).num_hosts == hosts


def test_slices_meet_over_dcn_with_the_nics_of_all_their_hosts() -> None:
    one = parse_slice("2*v5e:16x16")
    dcn = one.dims[0]
    per_host = one.chip.dcn_bytes_per_s_per_host
    assert isinstance(dcn, SwitchDim) and per_host
    assert (dcn.name, dcn.size, dcn.unit_chips) == ("dcn", 2, 256)
    assert dcn.egress_bytes_per_s == 32 * per_host


def test_gpu_tiers_are_spine_leaf_and_node_from_the_outside() -> None:
    dims = parse_slice("h100:8x128").dims
    assert [(d.name, d.size) for d in dims] == [("spine", 4), ("leaf", 32), ("node", 8)]
    spine, leaf, node = (d for d in dims if isinstance(d, SwitchDim))
    assert (spine.unit_chips, leaf.unit_chips, node.unit_chips) == (256, 8, 1)
    assert spine.egress_bytes_per_s == 32 * leaf.egress_bytes_per_s


def test_slices_without_a_dcn_rate_have_no_price() -> None:
    with pytest.raises(PlacementError, match="no DCN bandwidth") as caught:
        _ = parse_slice("2*h100:8x4").dims
    assert "`h100:8x4`" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e:32x8", "axis of 32"),
        ("v5e:16x16x2", "2 axes"),
        ("v5p:28x28x28", "largest"),
        ("h100:16x2", "at most 8"),
        ("h100:8x2x2", "GPUS_PER_NODE x NODES"),
        ("this-host:2", "single device"),
    ],
)
def test_a_shape_that_cannot_be_gets_a_hint_that_can(text: str, says: str) -> None:
    with pytest.raises(PlacementError, match=says) as caught:
        parse_slice(text)
    assert parse_slice(caught.value.hint.split()[-1]).num_chips >= 1


def test_a_host_that_nobody_measured_says_how_to() -> None:
    with pytest.raises(PlacementError) as caught:
        parse_slice("this-host:8")
    assert "`rooflight measure --devices 8 --write this-host.toml`" in caught.value.hint


@pytest.mark.parametrize("text", ["", "v5e:", "v5e:0x4", "0*v5e:4x4", "v5e:4x-4", "4x4", "v5e:4,4"])
def test_text_that_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_slice(text)
    assert caught.value.hint


@given(
    st.one_of(
        st.text(max_size=20),
        st.from_regex(r"[0-9]{0,3}\*?v5[ep]:[0-9x]{0,9}"),
        st.from_regex(r"([0-9]{0,4}[x*])?(h100|mi300x|v5p|tpu7x)[-x*:]?[0-9x]{0,9}"),
    )
)
def test_any_text_is_a_slice_or_a_clean_error(text: str) -> None:
    try:
        one = parse_slice(text)
    except RooflightError:
        return
    assert parse_slice(str(one)) == one


@pytest.mark.parametrize("text", ["h100:8x256/7", "h100:8x64/1.5", "h200:8/2"])
def test_thin_uplinks_are_part_of_a_slice(text: str) -> None:
    found = parse_slice(text)
    assert str(found) == text and parse_slice(str(found)) == found
    assert found != parse_slice(text.partition("/")[0])


def test_uplinks_as_the_catalog_has_them_are_not_said() -> None:
    assert str(parse_slice("h100:2048/1")) == "h100:8x256"
    with pytest.raises(PlacementError, match="cannot be oversubscribed"):
        parse_slice("v5p:4x4x4/2")
    with pytest.raises(ParseError, match="does not name a slice"):
        parse_slice("h100:8x4/")
