"""Recipes of chapters 5 and 6: FSDP and tensor parallelism together, against FSDP alone."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rooflight.book.derivation import Derivation, Line, Recipe, asked, chip_of, mesh_of, slice_of
from rooflight.book.entry import Entry, Input, Value
from rooflight.book.layer import LARGEST, MATMULS, BookLayer, Law, on_a_cube, root, tokens_bound
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import parse_mesh

# FSDP over X and tensor parallelism over Y at once: the best split, and the batch it needs.

OVERLAPS: Mapping[str, Callable[[Iterable[float]], float]] = {
    "sum": sum,  # the collectives of X and Y queue up: the 2025 edition
    "max": max,  # they run side by side: the newer one
}


@dataclass(frozen=True, slots=True)
class Mixed:
    """A layer of inner width F on N chips, D being one: it cancels."""

    laws: Mapping[str, Law]
    overlap: str
    inner: float
    chips: float

    def matmuls_s(self, tokens: float) -> float:
        return self.laws[MATMULS].at(self._sizes(tokens, 1.0))

    def collectives_s(self, tokens: float, x: float) -> float:
        """Of X ways of FSDP and N / X of tensor parallelism."""
        sizes = self._sizes(tokens, x)
        return OVERLAPS[self.overlap](self.laws[axis].at(sizes) for axis in "XY")

    def best_x(self, tokens: float) -> float:
        """Where both halves take equally long: one grows as X, the other shrinks as it.

        Their product is constant, so their sum and their maximum are least at the same X.
        """

        def gap_s(x: float) -> float:
            sizes = self._sizes(tokens, x)
            return self.laws["X"].at(sizes) - self.laws["Y"].at(sizes)

        return root(gap_s, 1 / LARGEST, LARGEST)

    def best_power_of_two(self, tokens: float) -> tuple[int, int]:
        """The powers of two X and Y that take least time, using as many chips as they can."""
        used = 2 ** (int(self.chips).bit_length() - 1)
        smaller = replace(self, chips=used)
        powers = [2**i for i in range(used.bit_length())]
        best = min(powers, key=lambda x: smaller.collectives_s(tokens, x))
        return best, used // best

    def tokens_bound(self) -> float:
        """The batch from which the best split is bound by its matmuls."""
        return root(lambda b: self.matmuls_s(b) - self.collectives_s(b, self.best_x(b)), 1, LARGEST)

    def tokens_bound_of_powers(self) -> float:
        """The same if X and Y are powers of two."""
        return root(
            lambda b: self.matmuls_s(b) - self.collectives_s(b, self.best_power_of_two(b)[0]),
            1,
            LARGEST,
        )

    def range_of_x(self, tokens: float) -> tuple[float, float]:
        """The fewest and the most ways of FSDP at which the matmuls still bind."""

        def spare_s(x: float) -> float:
            return self.matmuls_s(tokens) - self.collectives_s(tokens, x)

        best = self.best_x(tokens)
        return root(spare_s, 1 / LARGEST, best), root(spare_s, best, LARGEST)

    def _sizes(self, tokens: float, x: float) -> Mapping[str, float]:
        return {"B": tokens, "D": 1.0, "F": self.inner, "X": x, "Y": self.chips / x}


def mixed(chip: Chip, *, overlap: str, inner: float, chips: float) -> Mixed:
    """The forward pass decides: the backward one has twice the matmuls, not twice the bytes."""
    laws = on_a_cube(BookLayer("fsdp=X,tp=Y", forward=True), chip)
    return Mixed(laws, overlap, inner, chips)


def _mixed_of(e: Entry) -> Mixed:
    overlap = e.text("overlap") if "overlap" in e.inputs else "sum"
    return mixed(chip_of(e), overlap=overlap, inner=e.number("F"), chips=e.number("N"))


def _mixed_lines(m: Mixed, tokens: float) -> tuple[Line, ...]:
    """Both halves at the best split of a batch, for D = 1."""
    x = m.best_x(tokens)
    sizes = {"B": tokens, "D": 1.0, "F": m.inner, "X": x, "Y": m.chips / x}
    return (
        Line("best ways of FSDP", x, "ways"),
        Line("FSDP collectives there, D being 1", m.laws["X"].at(sizes), "s"),
        Line("tensor collectives there", m.laws["Y"].at(sizes), "s"),
        Line("matmuls", m.laws[MATMULS].at(sizes), "s"),
    )


def _best_split(e: Entry) -> Derivation:
    """The best ways of FSDP, and the powers of two next to them."""
    m, tokens = _mixed_of(e), e.number("B")
    x, y = m.best_power_of_two(tokens)
    found: dict[str, Value] = {"X_opt": m.best_x(tokens), "X": x, "Y": y}
    return asked(e, found, _mixed_lines(m, tokens))


def _mixed_bound(e: Entry) -> Derivation:
    """Tokens that the best split needs, on a chip and in all, and what a batch allows."""
    m = _mixed_of(e)
    needed = m.tokens_bound()
    per_chip = needed / m.chips
    found: dict[str, Value] = {"tokens_per_chip": per_chip, "batch": needed, "min_batch": needed}
    found["fig_batch"] = m.tokens_bound_of_powers()
    if "B" in e.inputs:
        tokens = e.number("B")
        x, y = m.best_power_of_two(tokens)
        found |= {"X": x, "Y": y, "chips": tokens / per_chip, "ok": tokens >= needed}
    return asked(e, found, _mixed_lines(m, needed))


def _mixed_against_fsdp(e: Entry) -> Derivation:
    """Between the bound of the best split and that of FSDP alone, only the split will do."""
    m, mesh = _mixed_of(e), mesh_of(e)
    low = m.tokens_bound() / m.chips
    high = tokens_bound(data_layer(e), mesh) / mesh.size("X")
    found: dict[str, Value] = {"tokens_per_chip": low, "gain": high / low, "lo": low, "hi": high}
    lines = Line("mixed, tokens per chip", low, "token"), Line("FSDP alone", high, "token")
    return asked(e, found, lines)


def _root_of_range(e: Entry) -> Derivation:
    m, tokens = _mixed_of(e), e.number("B")
    fewest, most = m.range_of_x(tokens)
    values: dict[str, Value] = {
        "base": (most + fewest) / 2,
        "delta": (most - fewest) / 2,
        "X": most,
    }
    lines = Line("fewest ways of FSDP", fewest, "ways"), Line("most", most, "ways")
    return Derivation(values, (*_mixed_lines(m, tokens), *lines))


def _whole_step(layout: str) -> BookLayer:
    return BookLayer(layout, forward=True, backward=True)


def _least_bytes(e: Entry) -> Derivation:
    """Batches at which 8 ways of tensor parallelism beside FSDP send least, both passes."""
    mesh, inner, width = mesh_of(e), e.whole("F"), e.whole("D")
    laws = on_a_cube(_whole_step("fsdp=X,tp=Y"), mesh.slice.chip)
    m = Mixed(laws, "sum", inner, mesh.slice.num_chips)
    sizes = {"B": mesh.slice.num_chips, "D": width, "F": inner}
    alone = _whole_step("fsdp=X").seconds(mesh, sizes)["X"] / width
    eight, sixteen = m.chips / 8, m.chips / 16

    def against_16(tokens: float) -> float:
        return m.collectives_s(tokens, eight) - m.collectives_s(tokens, sixteen)

    low = root(against_16, 1, LARGEST)
    high = root(lambda b: m.collectives_s(b, eight) - alone, 1, LARGEST)
    largest = e.number("largest")
    least = [b for b in (high, largest) if alone <= m.collectives_s(b, eight) * (1 + 1e-9)]
    lines = (
        Line("FSDP over three axes, D being 1", alone, "s"),
        Line("beside 8 ways of tensor parallelism, lower end", m.collectives_s(low, eight), "s"),
        Line("the same at the upper end", m.collectives_s(high, eight), "s"),
    )
    return Derivation({"mixed_lo": low, "mixed_hi": high, "fsdp_hi": max(least)}, lines)


def _whole_axes(e: Entry) -> Derivation:
    """The split that sends least when X and Y each take whole axes of a slice."""
    on, layer = slice_of(e), BookLayer("fsdp=X,tp=Y", forward=True)
    sizes = {"B": e.whole("tokens_per_chip") * on.num_chips, "D": e.whole("D"), "F": e.whole("F")}
    spent: dict[int, float] = {}
    for axes in range(len(on.shape) + 1):
        x = math.prod(on.shape[:axes])
        times = layer.seconds(parse_mesh(f"X={x},Y={on.num_chips // x}", on=on), sizes)
        spent[x] = sum(seconds for name, seconds in times.items() if name != MATMULS)
    best = min(spent, key=lambda x: spent[x])
    lines = tuple(
        Line(f"collectives with X={x}, Y={on.num_chips // x}", s, "s") for x, s in spent.items()
    )
    return Derivation({"fsdp": best, "tp": on.num_chips // best}, lines)


def _final_plan(e: Entry) -> Derivation:
    """FSDP over all sequences; what is left of its ways splits each sequence."""
    m, tokens = _mixed_of(e), e.whole("B")
    x, y = m.best_power_of_two(tokens)
    sequences = tokens // e.whole("seq")
    values: dict[str, Value] = {"dp": sequences, "sp": x // sequences, "tp": y, "chips_used": x * y}
    lines = (Line("sequences", sequences, "sequences"), *_mixed_lines(m, tokens))
    return Derivation(values, lines)


def _mixed_fits_batches(e: Entry) -> Derivation:
    """Two batches against FSDP alone and the best split, in both conventions."""
    mesh = mesh_of(e)
    chips = mesh.slice.num_chips
    alone = tokens_bound(data_layer(e), mesh)
    split = {o: m.tokens_bound() for o, m in _in_both_conventions(e).items()}
    small, large = e.number("small"), e.number("large")
    values: dict[str, Value] = {
        "tok_1m": small / chips,
        "tok_10m": large / chips,
        "fsdp_ok_1m": small >= alone,
        "fsdp_ok_10m": large >= alone,
        "mixed_sum_ok_1m": small >= split["sum"],
        "mixed_overlap_ok_1m": small >= split["max"],
    }
    lines = (
        Line("FSDP alone needs", alone, "token"),
        Line("mixed, halves one after another", split["sum"], "token"),
        Line("mixed, halves side by side", split["max"], "token"),
    )
    return Derivation(values, lines)


def _in_both_conventions(e: Entry) -> dict[str, Mixed]:
    return {o: _mixed_of(e.given(overlap=Input(o, "overlap"))) for o in OVERLAPS}


def pods_bounds(e: Entry) -> dict[str, float]:
    """What several pods need: tokens a pod over DCN, tokens per chip inside in both conventions."""
    mesh = mesh_of(e)
    over_dcn = tokens_bound(data_layer(e), mesh, axis="P") / mesh.slice.num_slices
    inside = {o: m.tokens_bound() / m.chips for o, m in _in_both_conventions(e).items()}
    return {"dcn": over_dcn, **inside}


def data_layer(e: Entry) -> BookLayer:
    return BookLayer(e.text("layout"), backward=True)


def _data_parallel(e: Entry) -> Derivation:
    """Tokens that keep data parallelism or FSDP over axis X busy, and what follows for a batch."""
    mesh, layer = mesh_of(e), data_layer(e)
    needed = tokens_bound(layer, mesh)
    per_chip = needed / mesh.size("X")
    found: dict[str, Value] = {"tokens_per_chip": per_chip, "pod_batch": needed}
    found["min_batch"] = needed
    if "batch" in e.inputs:
        chips = e.number("batch") / per_chip
        found |= {"chips": chips, "pods": chips / mesh.slice.num_chips}
        found["fsdp_ok"] = e.number("batch") >= needed
    lines = (*layer.shown(mesh), Line("tokens per chip from which matmuls bind", per_chip, "token"))
    return asked(e, found, lines)


def _data_parallel_on_chips(e: Entry) -> Derivation:
    """The same on one ring of several chips; input `v5e` is a slice, `v5e_flops` its peak."""
    values: dict[str, Value] = {}
    lines: list[Line] = []
    for name in e.expected:
        rate, link = e.inputs[f"{name}_flops"], e.inputs[f"{name}_link"]
        on = slice_of(e.given(bf16_flops=rate, link_bytes_per_s=link), name)
        mesh = parse_mesh(f"X={on.shape[0]}@x,Y={on.num_chips // on.shape[0]}", on=on)
        values[name] = tokens_bound(data_layer(e), mesh) / mesh.size("X")
        lines.append(
            Line(f"one ring of {on.chip.title}", mesh.group("X").rings[0].bytes_per_s, "B/s")
        )
    return Derivation(values, tuple(lines))


def _tokens_of_a_chip(e: Entry) -> Derivation:
    """A batch spread over a slice, against what FSDP needs there."""
    mesh, layer = mesh_of(e), data_layer(e)
    needed, per_chip = tokens_bound(layer, mesh), e.number("batch") / mesh.slice.num_chips
    lines = (*layer.shown(mesh), Line("batch from which matmuls bind", needed, "token"))
    values: dict[str, Value] = {"tokens_per_chip": per_chip, "fsdp_ok": e.number("batch") >= needed}
    return Derivation(values, lines)


def _over_dcn(e: Entry) -> Derivation:
    mesh, layer = mesh_of(e), data_layer(e)
    per_pod = tokens_bound(layer, mesh, axis="P") / mesh.slice.num_slices
    fan = mesh.group("P").fans[0]
    lines = (*layer.shown(mesh), Line("a chip's share of a pod's DCN", fan.bytes_per_s, "B/s"))
    return Derivation({"tokens_per_pod": per_pod}, lines)


RECIPES: Mapping[str, Recipe] = {
    "training.xopt_64chips": _best_split,
    "training.mixed_threshold_32k": _mixed_bound,
    "training.mixed_takeaway": _mixed_against_fsdp,
    "training.mixed_regime": _mixed_against_fsdp,
    "training.mixed_fig_16x16x16": _mixed_bound,
    "training.mixed_range": _least_bytes,
    "training.mixed_new_optimum": _whole_axes,
    "training.llama70b_mixed_bound": _mixed_bound,
    "training.llama70b_pod_recipe": _mixed_bound,
    "training.q3_mixed_bound": _mixed_bound,
    "training.q3_xopt": _best_split,
    "training.ex4_batches": _mixed_fits_batches,
    "applied_training.mixed_bound_70b": _mixed_bound,
    "applied_training.mixed_root_70b": _root_of_range,
    "applied_training.xopt_70b": _best_split,
    "applied_training.final_plan_70b": _final_plan,
    "training.dp_threshold_v5p_1axis": _data_parallel,
    "training.dp_threshold_v5p_3axis": _data_parallel,
    "training.dp_threshold_other_chips": _data_parallel_on_chips,
    "training.deepseek_v2_chips": _data_parallel,
    "training.llama70b_bs2m_fsdp": _data_parallel,
    "training.dcn_threshold": _over_dcn,
    "training.q3_fsdp_min_batch": _data_parallel,
    "applied_training.per_chip_tokens": _tokens_of_a_chip,
}
