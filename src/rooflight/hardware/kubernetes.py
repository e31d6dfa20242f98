"""The nodes of a slice as Google Kubernetes Engine labels them."""

import math

from rooflight.hardware.slice import Slice

_TPU = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
_GPU = "cloud.google.com/gke-accelerator"
_ARCH = "kubernetes.io/arch"
_FLAT = 4  # chips of the one slice that is written with its longest axes first, 2x2x1


def node_labels(on: Slice) -> dict[str, str]:
    """What a pod selects its nodes by; nothing where the catalog knows no label.

    >>> from rooflight.hardware.slice import parse_slice
    >>> [*node_labels(parse_slice("v5p:8x4x4")).values()], node_labels(parse_slice("mi300x:8"))
    (['tpu-v5p-slice', '4x4x8'], {})
    """
    node = on.chip.kubernetes
    if node is None or node.accelerator is None:
        return {}
    if on.chip.torus is None:
        arch = {_ARCH: node.arch} if node.arch else {}
        return {_GPU: node.accelerator} | arch
    shape = sorted(on.shape, reverse=math.prod(on.shape) <= _FLAT)
    return dict(zip(_TPU, (node.accelerator, "x".join(map(str, shape))), strict=True))


def pod_chips(on: Slice) -> int:
    """Chips of a pod: a slice that one host can hold has one, others are cut as nodes are.

    >>> from rooflight.hardware.slice import parse_slice
    >>> [pod_chips(parse_slice(name)) for name in ("v5e:2x4", "v6e:4x4", "h100:8x2", "gb200:8")]
    [8, 4, 8, 4]
    """
    together = on.shape[0] if on.chip.switched else on.chips_per_slice
    own = on.chip.kubernetes and on.chip.kubernetes.chips_per_node
    most = on.chip.host_chips
    return together if together <= most else math.gcd(together, own or most)
