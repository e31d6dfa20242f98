"""`rooflight measure`: this machine as a chip, by microbenchmarks on devices made of its cores."""

from dataclasses import asdict
from datetime import date

from rooflight.cli.flags import add_plot
from rooflight.cli.output import print_json, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.measure.child import check_devices, measure
from rooflight.measure.host_chip import Host, Product, chip_file, host_of
from rooflight.report.roofline_plot import PlotPoint, RoofLine, roofline_svg, roofline_text
from rooflight.report.table import table
from rooflight.specs.catalog import load_chip
from rooflight.specs.chip import Source
from rooflight.units import format_seconds, format_si, parse_count

HELP = "this machine as a chip: matmuls, memory and collectives, run on devices made of its cores"
_ROUNDS = 7


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--devices", default="8", metavar="N", help="how many to make of this host (default: 8)"
    )
    parser.add_argument(
        "--write",
        metavar="FILE.toml",
        help="keep it as a chip file; its name is the name of the chip (see ROOFLIGHT_CHIPS)",
    )
    add_plot(parser)
    parser.set_examples("rooflight measure --devices 2 --write this-host.toml")


def run(args: Namespace) -> int:
    devices = parse_count(args.devices, what="--devices")
    check_devices(devices)
    rows = measure("microbench:host", devices=devices, rounds=_ROUNDS)
    source = Source("measured", "rooflight measure, on the machine itself", "", str(date.today()))
    host = host_of(rows, load_chip("this-host"), devices=devices, source=source)
    if args.write:
        write_file(args.write, chip_file(host), flag="--write")
    if args.plot:
        svg = roofline_svg([_roof(host)], _points(host), title=f"this host, {devices} devices")
        write_file(args.plot, svg, flag="--plot")
    if args.json:
        print_json("measure", _document(host))
        return 0
    blocks = [_answer(host), _products(host), roofline_text([_roof(host)], _points(host))]
    print("\n\n".join([*blocks, *([_collectives(host)] if host.collectives else [])]))
    if args.write:
        suggest(f"ROOFLIGHT_CHIPS={args.write} rooflight chips this-host")
    return 0


def _roof(host: Host) -> RoofLine:
    rate = host.chip.hbm_bytes_per_s
    assert rate is not None
    return RoofLine("a device, f32", host.chip.flops["f32"], rate)


def _name(product: Product) -> str:
    return f"{product.m}x{product.k}x{product.n}"


def _points(host: Host) -> list[PlotPoint]:
    return [PlotPoint(_name(p), p.flops / p.nbytes, p.flops / p.seconds) for p in host.products]


def _answer(host: Host) -> str:
    roof, fabric = _roof(host), host.chip.switched
    assert fabric is not None
    words = (
        f"This host as {host.devices} devices, each while all of them work:"
        f" {format_si(roof.flops_per_s, 'FLOP/s')} in f32, {format_si(roof.bytes_per_s, 'B/s')}"
        " of memory"
    )
    if host.devices == 1:
        return f"{words}."
    egress = format_si(fabric.chip_egress_bytes_per_s, "B/s")
    return f"{words}, {egress} to the others after {format_seconds(fabric.hop_s)}."


def _products(host: Host) -> str:
    roof = _roof(host)
    rows = [
        [
            _name(p),
            format_seconds(p.seconds),
            format_si(p.flops / p.seconds, "FLOP/s"),
            format_si(p.nbytes / p.seconds, "B/s"),
            f"{p.flops / p.seconds / roof.height(p.flops / p.nbytes):.0%}",
        ]
        for p in host.products
    ]
    return table(("matmul", "time", "computes", "moves", "of its roof"), rows, align="lrrrr")


def _collectives(host: Host) -> str:
    rows = [
        [
            c.kind.replace("_", "-"),
            format_si(c.nbytes, "B"),
            format_seconds(c.seconds),
            format_seconds(c.predicted_s),
            f"{c.predicted_s / c.seconds - 1:+.0%}",
        ]
        for c in host.collectives
    ]
    header = ("collective", "bytes", "measured", "by the chip above", "off")
    return table(header, rows, align="lrrrr")


def _document(host: Host) -> dict[str, object]:
    fabric = host.chip.switched
    return {
        "devices": host.devices,
        "flops_per_s": host.chip.flops["f32"],
        "bytes_per_s": host.chip.hbm_bytes_per_s,
        "network": asdict(fabric) if fabric and host.devices > 1 else None,
        "matmuls": [asdict(p) for p in host.products],
        "collectives": [asdict(c) for c in host.collectives],
    }
