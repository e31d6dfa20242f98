"""A measured host as a chip: rows of size and seconds become facts, and the facts a chip file.

In: what `microbench.host` returns. Out: `Host`, and the text of a file for ROOFLIGHT_CHIPS, after
which every verb takes `--on this-host:8`. The devices share the cores, the caches and the memory
of one machine: a rate is a device's share while all of them work.

    peak      the fastest matmul
    memory    the fastest matmul of a few rows with a matrix, which reads the matrix once
    network   t = c V / W + h a, c and h of each collective as `costs.network` has them: latency a
              from the smallest arrays, egress W from those that take much longer; processes are
              nodes, and what their devices send to others goes through cards of their own
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any  # rows of JSON

from rooflight.costs.network import CollectiveKind, collective_time
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip, Source, SwitchedSpec
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
_ELEMENT = 4  # bytes of f32, in which everything is measured
_FEW = 8  # rows whose matmul still waits for its matrix
_LARGE = 3  # latencies that a collective takes at least to show the bandwidth
_LEAST_S = 1e-9  # of a hop on a machine that was disturbed


@dataclass(frozen=True, slots=True)
class MatmulSample:
    """x[m,k] * W[k,n] on every device at once."""

    m: int
    k: int
    n: int
    seconds: float

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def nbytes(self) -> int:
        return _ELEMENT * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, slots=True)
class CollectiveSample:
    """One collective of V bytes, measured and as the fitted network has it.

    Over the devices of a process, or, each device with its peers, over the processes.
    """

    kind: CollectiveKind
    nbytes: int
    seconds: float
    predicted_s: float
    between: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """A chip of which a slice has `devices`, and the measurements behind it."""

    chip: Chip
    matmuls: tuple[MatmulSample, ...]
    collectives: tuple[CollectiveSample, ...]
    processes: int = 1

    @property
    def devices(self) -> int:
        """Of one process."""
        return self.chip.host_chips

    @property
    def slice(self) -> Slice:
        """All devices that were measured."""
        return _slice(self.chip, self.processes)


def _slice(chip: Chip, processes: int) -> Slice:
    return Slice(chip, (chip.host_chips,) if processes == 1 else (chip.host_chips, processes))


def host_of(rows: Rows, base: Chip, *, devices: int, source: Source, processes: int = 1) -> Host:
    """The chip that rows describe; `base` is the catalog's entry that says nothing.

    `devices` are those of each process.
    """
    matmuls = tuple(MatmulSample(**row) for row in rows["matmuls"])
    facts = ("flops.f32", "hbm_bytes", "hbm_bytes_per_s", "host_shape")
    chip = replace(
        base,
        flops={"f32": max(p.flops / p.seconds for p in matmuls)},
        hbm_bytes=_memory_bytes() // (devices * processes),
        hbm_bytes_per_s=max(p.nbytes / p.seconds for p in matmuls if p.m <= _FEW),
        host_shape=(devices,),
        sources=dict.fromkeys(facts, source),
    )
    measured = rows["collectives"] if devices > 1 else ()
    chip = _with_network(chip, measured)
    found = [_collective(chip, row, 1) for row in measured]
    if processes > 1:
        chip = _with_cards(chip, rows["between"], processes)
        found += [_collective(chip, row, processes) for row in rows["between"]]
    return Host(chip, matmuls, tuple(found), processes)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _with_network(chip: Chip, rows: Sequence[Mapping[str, Any]]) -> Chip:
    """The links between the devices of a process."""
    domain = chip.host_chips
    if not rows:
        return replace(chip, switched=_fabric(domain, 1.0, 0.0))
    one_byte = replace(chip, switched=_fabric(domain, 1.0, 0.0))
    one_launch = replace(chip, switched=_fabric(domain, math.inf, 1.0))
    egress, launch_s = _fitted(one_byte, one_launch, rows, 1)
    return replace(chip, switched=_fabric(domain, egress, launch_s))


def _with_cards(chip: Chip, rows: Sequence[Mapping[str, Any]], processes: int) -> Chip:
    """The way out of a process, beside the links that are known."""
    fabric = chip.switched
    assert fabric is not None
    joined = replace(fabric, nodes_per_leaf=processes)
    one_byte = replace(joined, nic_bytes_per_s=1.0, launch_s=0.0)
    one_hop = replace(joined, nic_bytes_per_s=math.inf, fabric_hop_s=1.0, launch_s=0.0)
    launched = [{**row, "seconds": max(row["seconds"] - fabric.launch_s, _LEAST_S)} for row in rows]
    card, hop_s = _fitted(
        replace(chip, switched=one_byte), replace(chip, switched=one_hop), launched, processes
    )
    return replace(chip, switched=replace(joined, nic_bytes_per_s=card, fabric_hop_s=hop_s))


def _fitted(
    one_byte: Chip, one_hop: Chip, rows: Sequence[Mapping[str, Any]], processes: int
) -> tuple[float, float]:
    """Bytes per second and seconds a launch or hop, from what those of one second would take.

    Medians, for a machine that does other things disturbs some rows much.
    """
    least = min(row["nbytes"] for row in rows)
    small = [row for row in rows if row["nbytes"] == least]
    hop_s = median(row["seconds"] / _seconds(one_hop, row, processes) for row in small)
    rates = [
        _seconds(one_byte, row, processes)
        / (row["seconds"] - hop_s * _seconds(one_hop, row, processes))
        for row in rows
        if row["seconds"] > _LARGE * hop_s * _seconds(one_hop, row, processes)
    ]
    if not rates:
        raise UsageError(
            "large arrays took no longer than small ones: the machine is too busy to measure",
            hint="end what else runs here, and measure again",
        )
    return median(rates), hop_s


def _fabric(devices: int, egress: float, launch_s: float) -> SwitchedSpec:
    """One switch for all devices, whose threads meet once, and nothing beyond it."""
    return SwitchedSpec(devices, egress, egress, 1, 1.0, 0.0, 0.0, False, False, launch_s)


def _seconds(chip: Chip, row: Mapping[str, Any], processes: int) -> float:
    """Of a collective over the devices of a process, or over several processes."""
    inside = f"X={chip.host_chips}"
    axes = inside if processes == 1 else f"P={processes},{inside}"
    mesh = parse_mesh(axes, on=_slice(chip, processes))
    group = mesh.group(("X",) if processes == 1 else ("P",))
    return collective_time(row["kind"], row["nbytes"], group).expected_s


def _collective(chip: Chip, row: Mapping[str, Any], processes: int) -> CollectiveSample:
    seconds = _seconds(chip, row, processes)
    return CollectiveSample(row["kind"], row["nbytes"], row["seconds"], seconds, processes > 1)


def chip_file(host: Host) -> str:
    """The host as a file of the catalog's form."""
    chip, fabric = host.chip, host.chip.switched
    assert fabric is not None and chip.hbm_bytes_per_s is not None
    source = chip.sources["hbm_bytes"]
    facts = {
        "hbm_bytes": chip.hbm_bytes,
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "host_shape": f"[{host.devices}]",
        "flops.f32": chip.flops["f32"],
        "switched.domain_chips": fabric.domain_chips,
        "switched.chip_egress_bytes_per_s": fabric.chip_egress_bytes_per_s,
        "switched.nic_bytes_per_s": fabric.nic_bytes_per_s,
        "switched.nodes_per_leaf": fabric.nodes_per_leaf,
        "switched.launch_s": fabric.launch_s,
        "switched.hop_s": fabric.hop_s,
        "switched.fabric_hop_s": fabric.fabric_hop_s,
        "switched.reduces_in_domain": "false",
        "switched.reduces_in_fabric": "false",
        **{f"detail.{name}": value for name, value in chip.detail.items()},
    }
    lines = [
        f'title = "{chip.title}, one of {host.devices} devices"',
        f'kind = "{chip.kind}"',
        "",
        "[sources.measured]",
        *(f'{key} = "{value}"' for key, value in _words(source).items()),
        "",
        "[facts]",
        *(f'{name} = [{value}, "measured"]' for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def _words(source: Source) -> dict[str, str]:
    return {"title": source.title, "url": source.url, "checked": source.checked}
