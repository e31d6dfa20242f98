"""A chip as boxes and the rates between them: memory, on-chip memory, units, links.

In: a `Chip` of the catalog. Out: SVG. What the catalog lacks is not drawn.
"""

from rooflight.hardware.chip import Chip
from rooflight.ui.svg import marks as svg
from rooflight.units import format_si

_WIDTH, _HEIGHT = 880.0, 400.0


def chip_svg(chip: Chip) -> str:
    """The chip with its sizes and rates."""
    title = f"{chip.title}: memories, units and the rates between them"
    body = [svg.text(24, 30, chip.title, size=17, weight="bold")]
    body += _box(40, 110, 170, 150, _memory(chip), svg.PALETTE[0])
    body += _box(330, 110, 170, 150, _on_chip(chip), svg.PALETTE[2])
    body += _box(620, 70, 220, 100, _matrix(chip), svg.PALETTE[1])
    body += _box(620, 210, 220, 80, _vector(chip), svg.PALETTE[3])
    body += _rate(210, 330, 185, chip.hbm_bytes_per_s)
    body += _rate(500, 620, 130, chip.vmem_bytes_per_s)
    body.append(svg.line(500, 240, 620, 240, stroke=svg.MUTED, width=2))
    body += _outside(chip)
    return svg.document(_WIDTH, _HEIGHT, title=title, body=body)


def _memory(chip: Chip) -> list[str]:
    return ["HBM" if chip.kind != "cpu" else "memory", *_size(chip.hbm_bytes)]


def _on_chip(chip: Chip) -> list[str]:
    name = {"tpu": "VMEM", "gpu": "shared memory"}.get(chip.kind, "cache")
    return [name, *_size(chip.vmem_bytes)]


def _size(nbytes: int | None) -> list[str]:
    return [format_si(nbytes, "B")] if nbytes else ["size unknown"]


def _matrix(chip: Chip) -> list[str]:
    unit = chip.matrix_unit
    name = {"tpu": "MXU", "gpu": "tensor cores"}.get(chip.kind, "matrix unit")
    shape = [f"{unit.count} of {unit.rows} x {unit.cols}"] if unit else []
    rates = [f"{format_si(rate, 'FLOP/s')} {dtype}" for dtype, rate in chip.flops.items()]
    return [name, *shape, *sorted(rates, key=lambda r: "bf16" not in r)[:2]]


def _vector(chip: Chip) -> list[str]:
    name = {"tpu": "VPU", "gpu": "vector cores"}.get(chip.kind, "vector unit")
    return [name, *([format_si(chip.vector_flops, "FLOP/s")] if chip.vector_flops else [])]


def _box(
    x: float, y: float, width: float, height: float, words: list[str], colour: str
) -> list[str]:
    """A box with its name and what is known of it, in its middle."""
    first = y + height / 2 - (len(words) - 1) * 10 + 4
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"'
        f' fill="none" stroke="{colour}" stroke-width="2"/>',
        *(
            svg.text(
                x + width / 2,
                first + 20 * i,
                line,
                anchor="middle",
                size=15 if i == 0 else 12,
                weight="bold" if i == 0 else "normal",
            )
            for i, line in enumerate(words)
        ),
    ]


def _rate(x1: float, x2: float, y: float, rate: float | None) -> list[str]:
    words = format_si(rate, "B/s") if rate else "rate unknown"
    return [
        svg.line(x1, y, x2, y, stroke=svg.MUTED, width=4),
        svg.text((x1 + x2) / 2, y - 10, words, anchor="middle"),
    ]


def _outside(chip: Chip) -> list[str]:
    """What leaves the chip, in a row below it."""
    words: list[str] = []
    if chip.torus:
        links = 2 * chip.torus.dims
        rate = format_si(chip.torus.link_bytes_per_s, "B/s")
        words.append(f"{links} links to neighbours: {rate} each, one way")
    if chip.switched:
        rate = format_si(chip.switched.chip_egress_bytes_per_s, "B/s")
        words.append(f"switch of {chip.switched.domain_chips} chips: {rate} out")
        words.append(f"network card: {format_si(chip.switched.nic_bytes_per_s, 'B/s')}")
    if chip.pcie_bytes_per_s:
        words.append(f"host over PCIe: {format_si(chip.pcie_bytes_per_s, 'B/s')}")
    if chip.dcn_bytes_per_s_per_host:
        rate = format_si(chip.dcn_bytes_per_s_per_host, "B/s")
        words.append(f"data centre: {rate} per host")
    frame = (
        f'<rect x="24" y="48" width="{_WIDTH - 48:.1f}" height="270" rx="12" fill="none"'
        f' stroke="{svg.MUTED}" stroke-dasharray="6 5"/>'
    )
    each = (_WIDTH - 48) / max(len(words), 1)
    lines = [
        svg.text(24 + each * (i + 0.5), 352, line, anchor="middle", size=12)
        for i, line in enumerate(words)
    ]
    return [frame, *lines]
