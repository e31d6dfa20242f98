"""`rooflight measure`: this machine as a chip, by microbenchmarks on devices made of its cores."""

from dataclasses import asdict
from datetime import date
from pathlib import Path

from rooflight.cli.flags import add_plot
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Source
from rooflight.measure.microbench.child import check_devices, measure, measure_between
from rooflight.measure.microbench.host_chip import Host, MatmulSample, chip_file, host_of
from rooflight.measure.microbench.small_model import DEVICES, LAYOUTS, MODEL
from rooflight.measure.reconcile.host import (
    HostCalibration,
    calibrate_host,
    calibrated_chip,
    measure_layouts,
)
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg, roofline_text
from rooflight.ui.text.table import table
from rooflight.ui.text.terminal import within
from rooflight.units import format_seconds, format_si, parse_count

HELP = "this machine as a chip: matmuls, memory and collectives, run on devices made of its cores"
_ROUNDS = 7


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--devices", default="8", metavar="N", help="how many to make of this host (default: 8)"
    )
    parser.add_argument(
        "--processes",
        default="1",
        metavar="N",
        help="split the devices over so many real processes, and measure between them too",
    )
    parser.add_argument(
        "--write",
        metavar="FILE.toml",
        help="keep it as a chip file; its name is the name of the chip (see ROOFLIGHT_CHIPS)",
    )
    parser.add_argument(
        "--layouts",
        action="store_true",
        help=f"also train a small model under {len(LAYOUTS)} layouts, each predicted before it is"
        " seen, and keep the constants that they give with the chip",
    )
    add_plot(parser)
    parser.set_examples("rooflight measure --devices 2 --write this-host.toml")


def run(args: Namespace) -> int:
    devices = parse_count(args.devices, what="--devices")
    check_devices(devices)
    host = _measured(devices, parse_count(args.processes, what="--processes"))
    found = _calibrated(host, devices) if args.layouts else None
    host = calibrated_chip(host, found) if found else host
    if args.write:
        write_file(args.write, chip_file(host), flag="--write")
    if args.plot:
        svg = roofline_svg([_roof(host)], _points(host), title=f"this host, {devices} devices")
        write_file(args.plot, svg, flag="--plot")
    if args.json:
        print_json("measure", _document(host, found))
        return 0
    plot = roofline_text([_roof(host)], _points(host), width=within(72))
    blocks = [_answer(host), _matmuls(host), plot]
    blocks += [_collectives(host)] if host.collectives else []
    show("\n\n".join([*blocks, *([layouts_text(found)] if found else [])]))
    if args.write:
        shape = str(host.slice).partition(":")[2]
        suggest(f"ROOFLIGHT_CHIPS={args.write} rooflight slice {Path(args.write).stem}:{shape}")
    return 0


def _measured(devices: int, processes: int) -> Host:
    each, rest = divmod(devices, processes)
    if rest or not each:
        raise UsageError(
            f"{devices} devices are not the same number for {processes} processes",
            hint=f"give a number of processes that divides {devices}",
        )
    if processes == 1:
        rows = measure("ops:host", devices=devices, rounds=_ROUNDS)
    else:
        rows = measure_between("ops:between", processes=processes, devices=each, rounds=_ROUNDS)
    source = Source("measured", "rooflight measure, on the machine itself", "", str(date.today()))
    base = load_chip("this-host")
    return host_of(rows, base, devices=each, source=source, processes=processes)


def _calibrated(host: Host, devices: int) -> HostCalibration:
    if devices != DEVICES or host.processes > 1:
        raise UsageError(
            f"the layouts are of {DEVICES} devices of one process, not {devices} of"
            f" {host.processes}",
            hint=f"write --devices {DEVICES} --layouts",
        )
    return calibrate_host(host, measure_layouts(host), made=str(date.today()))


def layouts_text(found: HostCalibration) -> str:
    """Predicted beside measured, the fastest layout first, and how good that is."""
    rows = [
        [
            one.layout,
            one.mesh,
            format_seconds(one.measured_s),
            format_seconds(one.predicted_s),
            f"{one.error:+.0%}",
            format_seconds(one.bare_s),
        ]
        for one in sorted(found.layouts, key=lambda one: one.measured_s)
    ]
    header = ("layout", "mesh", "measured", "by the others", "off", "by the chip alone")
    one = found.calibration
    return (
        f"{table(header, rows, align='llrrrr')}\n\n"
        f"a step of {MODEL.title.lower()}, predicted by constants fitted to the other layouts:"
        f" median error {one.median_error:.1%}, mean {one.mean_error:.1%}, rank correlation"
        f" {found.rank_correlation:.2f} ({one.made})"
    )


def _roof(host: Host) -> RoofLine:
    rate = host.chip.hbm_bytes_per_s
    assert rate is not None
    return RoofLine("a device, f32", host.chip.flops["f32"], rate)


def _name(matmul: MatmulSample) -> str:
    return f"{matmul.m}x{matmul.k}x{matmul.n}"


def _points(host: Host) -> list[PlotPoint]:
    return [PlotPoint(_name(p), p.flops / p.nbytes, p.flops / p.seconds) for p in host.matmuls]


def _answer(host: Host) -> str:
    roof, fabric = _roof(host), host.chip.switched
    assert fabric is not None
    devices = f"{host.devices} devices"
    if host.processes > 1:
        devices = f"{host.processes} processes with {devices}"
    words = (
        f"This host as {devices}, each while all of them work:"
        f" {format_si(roof.flops_per_s, 'FLOP/s')} in f32, {format_si(roof.bytes_per_s, 'B/s')}"
        " of memory"
    )
    if host.devices > 1:
        egress = format_si(fabric.chip_egress_bytes_per_s, "B/s")
        words += f", {egress} to the others after {format_seconds(fabric.launch_s)}"
    if host.processes > 1:
        card = format_si(fabric.nic_bytes_per_s, "B/s")
        wait_s = fabric.launch_s + fabric.fabric_hop_s
        words += f", {card} to other processes after {format_seconds(wait_s)}"
    return f"{words}."


def _matmuls(host: Host) -> str:
    roof = _roof(host)
    rows = [
        [
            _name(p),
            format_seconds(p.seconds),
            format_si(p.flops / p.seconds, "FLOP/s"),
            format_si(p.nbytes / p.seconds, "B/s"),
            f"{p.flops / p.seconds / roof.height(p.flops / p.nbytes):.0%}",
        ]
        for p in host.matmuls
    ]
    return table(("matmul", "time", "computes", "moves", "of its roof"), rows, align="lrrrr")


def _collectives(host: Host) -> str:
    rows = [
        [
            c.kind.replace("_", "-") + (" between processes" if c.between else ""),
            format_si(c.nbytes, "B"),
            format_seconds(c.seconds),
            format_seconds(c.predicted_s),
            f"{c.predicted_s / c.seconds - 1:+.0%}",
        ]
        for c in host.collectives
    ]
    header = ("collective", "bytes", "measured", "by the chip above", "off")
    return table(header, rows, align="lrrrr")


def _document(host: Host, found: HostCalibration | None) -> dict[str, object]:
    fabric = host.chip.switched
    return {
        "devices": host.devices,
        "processes": host.processes,
        "flops_per_s": host.chip.flops["f32"],
        "bytes_per_s": host.chip.hbm_bytes_per_s,
        "network": asdict(fabric) if fabric and host.slice.num_chips > 1 else None,
        "matmuls": [asdict(p) for p in host.matmuls],
        "collectives": [asdict(c) for c in host.collectives],
        "layouts": [asdict(one) for one in found.layouts] if found else None,
        "rank_correlation": found.rank_correlation if found else None,
        "calibration": asdict(found.calibration) if found else None,
    }
