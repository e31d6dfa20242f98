"""What every host of a run must agree on before any of them touches a device.

In: a `Run`. Out: `Facts`: digests of the run, its plan and its data, versions, devices. A host
whose facts differ is refused with each difference in words, instead of a hang in a collective.
"""

import hashlib
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path

from rooflight.plan.file.record import plan_hash
from rooflight.train.run import Run, run_hash
from rooflight.train.tokens import data_digest

_PACKAGES = ("rooflight", "jax", "jaxlib", "libtpu", "optax", "orbax-checkpoint", "grain")
_CHIPS = ("accel[0-9]*", "vfio/[0-9]*")  # how TPUs appear below /dev


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one host."""

    run: str
    plan: str
    data: str
    versions: tuple[str, ...]
    devices: int | None  # of the host; None where it cannot be told without starting jax

    def differences(self, other: "Facts") -> dict[str, str]:
        """What `other` has otherwise, by name and in words; self is the host that leads."""
        found: dict[str, str] = {}
        for name in ("run", "plan", "data", "devices"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs and None not in (ours, theirs):
                found[name] = f"its {name} is {theirs}, not {ours}"
        for ours, theirs in zip_longest(self.versions, other.versions, fillvalue="nothing"):
            if ours != theirs:
                found[ours.split()[-2] if " " in ours else "version"] = (
                    f"it has {theirs}, not {ours}"
                )
        return found


def facts_of(run: Run, cpu_devices: int | None) -> Facts:
    """`cpu_devices` of this host stand for chips; None asks the host."""
    versions = (f"python {platform.python_version()}", *map(_version, _PACKAGES))
    devices = _chips() if cpu_devices is None else cpu_devices
    data = data_digest(Path(run.data)) + _first_weights(run.weights)
    return Facts(run_hash(run), plan_hash(run.plan), data, versions, devices)


def _first_weights(folder: str | None) -> str:
    """A digest of the names and sizes of the files to begin with: to read them takes too long."""
    if folder is None:
        return ""
    files = sorted((p.name, p.stat().st_size) for p in Path(folder).glob("*.safetensors"))
    return " and weights " + hashlib.sha256(str(files).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def _chips() -> int | None:
    found = sum(len([*Path("/dev").glob(pattern)]) for pattern in _CHIPS)
    return found or None
