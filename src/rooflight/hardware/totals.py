"""What a slice adds up to: memory, rates, the narrowest cut, the network of its hosts, dollars."""

from rooflight.hardware.slice import PhysicalDim, Slice, SwitchDim


def bisection_bytes_per_s(target: Slice) -> float | None:
    """Bytes per second over the narrowest cut into halves, both directions together.

    A torus axis of n is cut across N/n lines of links, at two places if it wraps; a switched tier
    by the egress of half of its units. It stops holding for traffic that does not spread evenly.

    >>> from rooflight.hardware.slice import parse_slice
    >>> bisection_bytes_per_s(parse_slice("h100:8"))
    3600000000000.0
    """
    return min((_cut(target, dim) for dim in target.dims if dim.size > 1), default=None)


def _cut(target: Slice, dim: PhysicalDim) -> float:
    if isinstance(dim, SwitchDim):
        fans = target.num_chips // (dim.size * dim.unit_chips)
        return 2 * fans * (dim.size // 2) * dim.egress_bytes_per_s
    lines = target.num_chips // dim.size
    places = 2 if dim.wraps else 1
    return 2 * lines * places * dim.link_bytes_per_s


def slice_totals(target: Slice) -> dict[str, float | None]:
    """Sums over the slice, by the name of the chip's own fact."""
    chip, chips = target.chip, target.num_chips
    return {
        "hbm_bytes": _times(chip.hbm_bytes, chips),
        "hbm_bytes_per_s": _times(chip.hbm_bytes_per_s, chips),
        "bisection_bytes_per_s": bisection_bytes_per_s(target),
        "dcn_bytes_per_s": _times(chip.dcn_bytes_per_s_per_host, target.num_hosts),
        "dollars_per_hour": _times(chip.dollars_per_hour, chips),
    }


def _times(value: float | None, count: int) -> float | None:
    return None if value is None else value * count
