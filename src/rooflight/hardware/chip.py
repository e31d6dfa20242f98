"""`Chip`: one accelerator as its vendor and the book describe it, every value with its source.

In: a parsed catalog file. Out: a frozen record. What is not known is None, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.units import median


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from and when somebody last looked."""

    key: str
    title: str
    url: str
    checked: str


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """One systolic array (TPU) or tensor core (GPU): its shape, how many a chip has, its clock."""

    rows: int
    cols: int
    count: int
    clock_hz: float

    @property
    def peak_flops(self) -> float:
        """2 * rows * cols * clock * count: a multiply and an add in every cell, every cycle."""
        return 2.0 * self.rows * self.cols * self.clock_hz * self.count


@dataclass(frozen=True, slots=True)
class TorusSpec:
    """The inter-chip links of a chip that lives in a torus (TPU)."""

    dims: int
    link_bytes_per_s: float
    hop_s: float
    pod_shape: tuple[int, ...]
    wrap_axis: int | None = None  # an axis of exactly this length wraps (v5e, v6e)
    wrap_cube: int | None = None  # all axes wrap when each is a multiple of this (v4, v5p, 7x)
    max_axis: int | None = None  # longest axis; None means the pod's own


@dataclass(frozen=True, slots=True)
class SwitchedSpec:
    """The fabric of a chip behind switches (GPU): NVLink domain, then leaf, then spine.

    A chip has one NIC, which leaf and spine share; where a node has fewer, `nic_bytes_per_s` is a
    chip's part of them. The uplinks of a leaf carry its NICs over `leaf_oversubscription`.
    """

    domain_chips: int
    chip_egress_bytes_per_s: float
    nic_bytes_per_s: float
    nodes_per_leaf: int
    leaf_oversubscription: float
    hop_s: float  # from one chip of a node to the next
    fabric_hop_s: float  # from one level of a tree of nodes to the next
    reduces_in_domain: bool
    reduces_in_fabric: bool
    launch_s: float = 0.0  # of any collective, however few its chips


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """What a pod asks for, and how Google Kubernetes Engine labels and cuts nodes of this chip."""

    resource: str
    accelerator: str | None = None  # None: no label that we know
    chips_per_node: int | None = None  # None: those of a host
    arch: str | None = None  # of the hosts' CPUs; None: that of most, which nobody asks for


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator. `detail` holds the facts only some chips have (SMs, L2, registers...)."""

    name: str
    title: str
    kind: str  # "tpu", "gpu" or "cpu"
    flops: Mapping[str, float] = field(hash=False)
    hbm_bytes: int | None
    hbm_bytes_per_s: float | None
    vmem_bytes: int | None
    vmem_bytes_per_s: float | None
    vector_flops: float | None
    cores: int
    matrix_unit: MatrixUnit | None
    watts: float | None
    pcie_bytes_per_s: float | None
    host_shape: tuple[int, ...]
    dcn_bytes_per_s_per_host: float | None
    prices: Mapping[str, float] = field(hash=False)  # dollars of a chip-hour on demand, by cloud
    torus: TorusSpec | None = None
    switched: SwitchedSpec | None = None
    kubernetes: KubernetesNode | None = None
    detail: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    spot_prices: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    sources: Mapping[str, Source] = field(default_factory=dict[str, Source], hash=False)

    @property
    def dollars_per_hour(self) -> float | None:
        """What the middle one of the clouds asks, on demand."""
        return self.price("on-demand")

    def price(self, offer: str) -> float | None:
        """Dollars of a chip-hour: at a cloud (`gcp`, `gcp/spot`), or of all, `on-demand` or `spot`.

        >>> from rooflight.hardware.catalog import load_chip
        >>> load_chip("v5e").price("gcp"), load_chip("v5e").price("lambda")
        (1.2, None)
        """
        cloud, _, kind = offer.rpartition("/") if offer.endswith("spot") else (offer, "", "")
        prices = self.spot_prices if kind else self.prices
        if cloud in ("", "on-demand"):
            return median(prices.values()) if prices else None
        return prices.get(cloud)

    def source_of(self, fact: str) -> Source | None:
        """The source of a catalog fact, by its name in the file (`hbm_bytes`, `flops.bf16`)."""
        prices = (s for name, s in self.sources.items() if name.startswith("prices."))
        return self.sources.get(fact, next(prices, None) if fact == "dollars_per_hour" else None)

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s at a dtype; block formats run at the rate of their element."""
        element = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}.get(dtype, dtype)
        if element in self.flops:
            return self.flops[element]
        known = ", ".join(self.flops) or "none"
        raise UsageError(
            f"{self.title} has no {dtype} rate in its catalog (it has {known})",
            hint=f"choose one of {known}, or add flops.{element} in your own chip file",
        )

    def matmul_dtype(self, dtype: str) -> str:
        """The dtype the matrix unit computes in when operands are stored as `dtype`.

        A chip with no rate for a dtype upcasts: an integer to the next wider integer, else (and
        every float) to the narrowest float that is wide enough. Kernels of 4-bit floats leave
        activations as they are, in 16 bits.
        """
        if dtype in self.flops:
            return dtype
        width = DTYPES[dtype].bits
        if width < 8 and not dtype.startswith("int") and "fp4" not in self.flops:
            width = 16
        wider = [d for d in self.flops if DTYPES[d].bits >= width]
        integers = [d for d in wider if d.startswith("int")]
        floats = [d for d in wider if not d.startswith("int")]
        chosen = integers if dtype.startswith("int") and integers else floats
        if not chosen:
            raise UsageError(
                f"{self.title} has no matmul rate for {dtype} or anything wider",
                hint=f"choose one of {', '.join(self.flops) or 'another chip'}",
            )
        return min(chosen, key=lambda d: (DTYPES[d].bits, -self.flops[d]))

    @property
    def host_chips(self) -> int:
        """Chips attached to one host."""
        chips = 1
        for n in self.host_shape:
            chips *= n
        return chips
