"""The roof of a chip of the catalog, for traces that do not say what theirs is."""

from dataclasses import replace

from rooflight.hardware.chip import Chip
from rooflight.measure.trace.record import Peaks, Trace


def under_roof(trace: Trace, chip: Chip, *, dtype: str = "bf16") -> Trace:
    """The same trace, every device held to the peak of a chip at a dtype and to its memory."""
    used = chip.matmul_dtype(dtype)
    roof = Peaks(chip.peak_flops(used), chip.hbm_bytes_per_s, f"{chip.title}, {used}")
    devices = tuple(replace(device, roof=roof) for device in trace.devices)
    return replace(trace, devices=devices)
