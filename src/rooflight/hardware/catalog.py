"""The hardware catalog: one TOML file per chip, every fact as `[value, "source"]`.

The built-in files are beside this module. A user adds chips with files of the same form, in the
folder or file named by the environment variable ROOFLIGHT_CHIPS (several, joined like PATH).
"""

import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import cast

from rooflight.dtypes import DTYPES
from rooflight.errors import ParseError, UnknownNameError
from rooflight.hardware.chip import (
    Chip,
    KubernetesNode,
    MatrixUnit,
    Source,
    SwitchedSpec,
    TorusSpec,
)

_BUILT_IN = Path(__file__).parent / "catalog"
_ALIASES = {"v4p": "v4", "7x": "tpu7x", "ironwood": "tpu7x", "trillium": "v6e", "v5litepod": "v5e"}
_NAME = re.compile(r"[\w./-]{1,253}", re.ASCII)

Table = Mapping[str, object]


def chip_names() -> tuple[str, ...]:
    """Every chip the catalog holds, built-in first, then the user's."""
    return tuple(_files())


@lru_cache(maxsize=256)
def load_chip(name: str) -> Chip:
    """Finds a chip by name (`v5p`, `h100`); unknown names get a did-you-mean.

    >>> load_chip("v5e").torus.link_bytes_per_s
    45000000000.0
    """
    files = _files()
    key = name.lower().removeprefix("tpu-").removeprefix("tpu_")
    key = _ALIASES.get(key, key)
    if key not in files:
        raise UnknownNameError("chip", name, files)
    return read_chip(files[key])


def find_chip(name: str) -> Chip | None:
    """The chip of this name; None where the catalog has none."""
    try:
        return load_chip(name)
    except UnknownNameError:
        return None


def _files() -> dict[str, Path]:
    found = {p.stem: p for p in sorted(_BUILT_IN.glob("*.toml"))}
    for entry in os.environ.get("ROOFLIGHT_CHIPS", "").split(os.pathsep):
        if entry:
            path = Path(entry)
            paths = sorted(path.glob("*.toml")) if path.is_dir() else [path]
            found |= {p.stem.lower(): p for p in paths}
    return found


def read_chip(path: Path) -> Chip:
    """Reads one chip file; a wrong fact is named with its file."""
    try:
        table = cast(Table, tomllib.loads(path.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        raise ParseError(
            f"cannot read chip file {path}: {error}",
            hint="compare it with `rooflight chips v5e --toml`",
        ) from None
    return _ChipFile(path, table).chip()


class _ChipFile:
    """One parsed file on its way to a `Chip`: checks each fact and remembers its source."""

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        self.table = table
        self.sources = {
            key: Source(key, *(str(row.get(k, "")) for k in ("title", "url", "checked")))
            for key, row in self._section(table, "sources").items()
            if isinstance(row, dict)
            for row in [cast(Table, row)]
        }
        self.facts = self._section(table, "facts")
        self.used: dict[str, Source] = {}

    def chip(self) -> Chip:
        number, whole, need, facts = self._number, self._whole, self._need, self.facts
        chip = Chip(
            name=self.path.stem.lower(),
            title=str(self.table.get("title", self.path.stem)),
            kind=self._kind(),
            flops=self._rates(),
            hbm_bytes=whole("hbm_bytes"),
            hbm_bytes_per_s=number("hbm_bytes_per_s"),
            vmem_bytes=whole("vmem_bytes"),
            vmem_bytes_per_s=number("vmem_bytes_per_s"),
            vector_flops=number("vector_flops"),
            cores=whole("cores") or 1,
            matrix_unit=self._matrix_unit(),
            watts=number("watts"),
            pcie_bytes_per_s=number("pcie_bytes_per_s"),
            host_shape=self._shape("host_shape") or (1,),
            dcn_bytes_per_s_per_host=number("dcn_bytes_per_s_per_host"),
            prices=self._prices(),
            spot_prices={n: need(f"spot_prices.{n}") for n in self._section(facts, "spot_prices")},
            torus=self._torus(),
            switched=self._switched(),
            kubernetes=self._kubernetes(),
            detail=self._detail(),
            sources=self.used,
        )
        unknown = set(self._flat(self.facts)) - set(self.used)
        if unknown:
            raise self._error(f"does not know the fact {min(unknown)!r}")
        return chip

    def _error(self, message: str) -> ParseError:
        return ParseError(
            f"chip file {self.path} {message}", hint="compare it with `rooflight chips v5e --toml`"
        )

    def _section(self, table: Table, key: str) -> Table:
        section = table.get(key, {})
        if not isinstance(section, dict):
            raise self._error(f"has a {key!r} that is not a table")
        return cast(Table, section)

    def _flat(self, table: Table, prefix: str = "") -> list[str]:
        names: list[str] = []
        for key, value in table.items():
            if isinstance(value, dict):
                names += self._flat(cast(Table, value), f"{prefix}{key}.")
            else:
                names.append(prefix + key)
        return names

    def _kind(self) -> str:
        kind = self.table.get("kind")
        if kind not in ("tpu", "gpu", "cpu"):
            raise self._error(f"has kind {kind!r}; it must be tpu, gpu or cpu")
        return str(kind)

    def _fact(self, name: str) -> object | None:
        """The value of `a.b`, or None; notes its source."""
        node: object = self.facts
        for part in name.split("."):
            if not isinstance(node, dict) or part not in node:
                return None
            node = cast(Table, node)[part]
        pair = cast(list[object], node) if isinstance(node, list) else []
        if len(pair) != 2 or str(pair[1]) not in self.sources:
            known = ", ".join(self.sources) or "none"
            raise self._error(f"must give {name} as [value, source], source one of: {known}")
        self.used[name] = self.sources[str(pair[1])]
        return pair[0]

    def _number(self, name: str) -> float | None:
        value = self._fact(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
            raise self._error(f"has {name} = {value!r}; it must be a number, zero or more")
        return float(value)

    def _whole(self, name: str) -> int | None:
        value = self._number(name)
        return None if value is None else int(value)

    def _need(self, name: str) -> float:
        value = self._number(name)
        if value is None:
            raise self._error(f"lacks {name}")
        return value

    def _shape(self, name: str) -> tuple[int, ...]:
        value = self._fact(name)
        if value is None:
            return ()
        sizes = cast(list[object], value) if isinstance(value, list) else []
        if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            raise self._error(f"has {name} = {value!r}; it must be a list of sizes")
        return tuple(cast(list[int], sizes))

    def _name(self, name: str) -> str | None:
        value = self._fact(name)
        if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
            raise self._error(f"has {name} = {value!r}; it must be a name")
        return value

    def _kubernetes(self) -> KubernetesNode | None:
        if "kubernetes" not in self.facts:
            return None
        resource = self._name("kubernetes.resource")
        if resource is None:
            raise self._error("lacks kubernetes.resource")
        self._positive("kubernetes.chips_per_node")
        return KubernetesNode(
            resource,
            self._name("kubernetes.accelerator"),
            self._whole("kubernetes.chips_per_node"),
            self._name("kubernetes.arch"),
        )

    def _flag(self, name: str) -> bool:
        return self._fact(name) is True

    def _rates(self) -> dict[str, float]:
        rates = {name: self._need(f"flops.{name}") for name in self._section(self.facts, "flops")}
        for name in rates:
            if name not in DTYPES:
                raise UnknownNameError(f"dtype in {self.path}", name, DTYPES)
        return rates

    def _detail(self) -> dict[str, float]:
        return {name: self._need(f"detail.{name}") for name in self._section(self.facts, "detail")}

    def _prices(self) -> dict[str, float]:
        """By cloud, `dollars_per_hour` the middle one; or that is a fact of the file, and alone."""
        found = {n: self._need(f"prices.{n}") for n in self._section(self.facts, "prices")}
        own = self._number("dollars_per_hour")
        return found if own is None else {"own": own}

    def _matrix_unit(self) -> MatrixUnit | None:
        if "matrix_unit" not in self.facts:
            return None
        rows, cols, count = (int(self._need(f"matrix_unit.{k}")) for k in ("rows", "cols", "count"))
        return MatrixUnit(rows, cols, count, self._need("matrix_unit.clock_hz"))

    def _positive(self, *names: str) -> None:
        for name in names:
            if self._number(name) == 0:
                raise self._error(f"has {name} = 0; leave it out or give its true value")

    def _torus(self) -> TorusSpec | None:
        if "torus" not in self.facts:
            return None
        self._positive("torus.link_bytes_per_s", "torus.wrap_axis", "torus.wrap_cube")
        dims, pod = int(self._need("torus.dims")), self._shape("torus.pod_shape")
        if not 1 <= dims <= 3 or len(pod) != dims:
            raise self._error(f"has torus.dims = {dims} and a pod_shape of {len(pod)} axes")
        return TorusSpec(
            dims=dims,
            link_bytes_per_s=self._need("torus.link_bytes_per_s"),
            hop_s=self._need("torus.hop_s"),
            pod_shape=pod,
            wrap_axis=self._whole("torus.wrap_axis"),
            wrap_cube=self._whole("torus.wrap_cube"),
            max_axis=self._whole("torus.max_axis"),
        )

    def _switched(self) -> SwitchedSpec | None:
        if "switched" not in self.facts:
            return None
        self._positive(
            "switched.domain_chips",
            "switched.chip_egress_bytes_per_s",
            "switched.nic_bytes_per_s",
            "switched.nodes_per_leaf",
        )
        return SwitchedSpec(
            domain_chips=int(self._need("switched.domain_chips")),
            chip_egress_bytes_per_s=self._need("switched.chip_egress_bytes_per_s"),
            nic_bytes_per_s=self._need("switched.nic_bytes_per_s"),
            nodes_per_leaf=int(self._need("switched.nodes_per_leaf")),
            leaf_oversubscription=self._oversubscription(),
            hop_s=self._need("switched.hop_s"),
            fabric_hop_s=self._need("switched.fabric_hop_s"),
            reduces_in_domain=self._flag("switched.reduces_in_domain"),
            reduces_in_fabric=self._flag("switched.reduces_in_fabric"),
            launch_s=self._number("switched.launch_s") or 0.0,
        )

    def _oversubscription(self) -> float:
        factor = self._number("switched.leaf_oversubscription")
        if factor is not None and factor < 1:
            raise self._error(f"has switched.leaf_oversubscription = {factor:g}; 1 is none")
        return factor or 1.0
