"""Chips as rows name them: the catalog's chip, with what differs in a variant."""

from dataclasses import dataclass, replace

from rooflight.errors import UnknownNameError
from rooflight.hardware.calibration import measured_chips
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.chip import Chip


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """A chip, and how many devices the software sees in one."""

    chip: Chip
    devices: int = 1


def measured_chip(name: str) -> MeasuredChip:
    """The chip of a row; a name of the catalog works too.

    >>> measured_chip("a100_40g_sxm").chip.hbm_bytes_per_s, measured_chip("tpu_v7x").devices
    (1555000000000.0, 2)
    """
    known = measured_chips()
    if name not in known:
        try:
            return MeasuredChip(load_chip(name))
        except UnknownNameError as error:
            raise UnknownNameError("chip", name, known) from error
    facts = known[name]
    chip = replace(load_chip(facts["chip"]), name=name)
    differs = {key: facts[key] for key in ("hbm_bytes", "hbm_bytes_per_s") if key in facts}
    chip = replace(chip, **differs)
    if "domain_chips" in facts and chip.switched:
        domain = replace(chip.switched, domain_chips=facts["domain_chips"])
        chip = replace(chip, switched=domain)
    return MeasuredChip(chip, facts.get("devices", 1))
