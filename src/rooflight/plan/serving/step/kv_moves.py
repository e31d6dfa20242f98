"""Caches that travel from prefill to generate slices.

In: a graph, a slice, positions. Out: bytes and seconds.
"""

from dataclasses import dataclass

from rooflight.dtypes import Dtype
from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.graph.count import kv_bytes
from rooflight.models.graph.ops import Graph


@dataclass(frozen=True, slots=True)
class KvMove:
    """A cache on its way: its bytes, and the rate of all chips or hosts together."""

    nbytes: int
    bytes_per_s: float
    over: str

    @property
    def seconds(self) -> float:
        return self.nbytes / self.bytes_per_s


def hand_over(graph: Graph, positions: int, dtype: Dtype, source: Slice, target: Slice) -> KvMove:
    """A finished prompt's cache from a prefill slice to a generate slice, over the DCN.

    Every host sends or receives its part at once, so the side with less bandwidth binds. It stops
    holding where other transfers share the network, and it is hidden where layers are sent as
    they end.
    """
    rate = min(_dcn(source), _dcn(target))
    return KvMove(kv_bytes(graph, batch=1, seq=positions, dtype=dtype), rate, "DCN")


def _dcn(on: Slice) -> float:
    """The network egress of all hosts; a chip behind switches brings its own port."""
    if on.chip.switched:
        return on.num_chips * on.chip.switched.nic_bytes_per_s
    if on.chip.dcn_bytes_per_s_per_host is None:
        raise UsageError(
            f"{on.chip.title} has no DCN bandwidth in its catalog, so no cache can leave {on}",
            hint="choose another chip, or add dcn_bytes_per_s_per_host in your own chip file",
        )
    return on.num_hosts * on.chip.dcn_bytes_per_s_per_host
