"""What an op is: its class, its layer, and how the profiler names both.

In: the category or opcode of an op, its name, and the scopes it was traced under. Out: one of
`CLASSES`, and the named scope without what JAX puts around it.
"""

import re
from functools import lru_cache
from typing import Literal

OpClass = Literal[
    "matmul",
    "attention kernel",
    "kernel",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "send-recv",
    "copy",
    "vector",
    "host",
    "control",
    "idle",
]
COLLECTIVES: tuple[OpClass, ...] = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "send-recv",
)
# In this order: an all-reduce-scatter is a reduce-scatter, and a host send is no collective.
_WORDS: tuple[tuple[OpClass, re.Pattern[str]], ...] = (
    ("host", re.compile(r"infeed|outfeed|host[ -](send|recv)|host-transfer")),
    ("reduce-scatter", re.compile(r"reduce-?scatter")),
    ("all-gather", re.compile(r"all-?gather")),
    ("all-reduce", re.compile(r"all-?reduce|cross-replica-sum")),
    ("all-to-all", re.compile(r"all-?to-?all")),
    ("collective-permute", re.compile(r"collective-?permute|collective-?broadcast")),
    ("send-recv", re.compile(r"^(send|recv)\b|sendrecv|^send-done|^recv-done")),
)
_CONTROL = frozenset({"while", "conditional", "call", "megacore fusion"})
_COPIES = re.compile(
    r"^(copy|transpose|reshape|data formatting|slice|dynamic-slice|dynamic-update-slice|"
    r"concatenate|pad|bitcast|async|memcpy|memset)"
)
_MATMULS = re.compile(r"^(convolution|dot|output fusion|gemm|cublas|cutlass)|gemm|matmul")
_ATTENTION = re.compile(r"attention|splash|flash|fmha|paged|mha")
_TRANSFORM = re.compile(r"^(?:jvp|transpose|vmap|remat|checkpoint|rematted_computation)\((.*)\)$")
_MACHINERY = re.compile(
    r"^(?:p?jit\(.*\)|xla_p?jit\(.*\)|while|body|cond|branch_\d+_fun|closed_call|core_call|"
    r"custom_[jv][vj]p_call.*|shard_map|rematted_computation|checkpoint|remat\d?|scan|"
    r"pallas_call|.*->.*|)$"
)
UNNAMED = "no scope"


def op_class(
    category: str, name: str, *, target: str = "", scope: str = "", holds: frozenset[str]
) -> OpClass:
    """The class of an op.

    `category` is the profiler's (`convolution fusion`) or an opcode; `target` that of a custom
    call; `scope` the names it was traced under; `holds` the opcodes of what a fusion holds, where
    they are known.

    >>> op_class("convolution fusion", "fusion.3", holds=frozenset())
    'matmul'
    >>> op_class("all-reduce-scatter fusion", "fusion.7", holds=frozenset())
    'reduce-scatter'
    """
    category, name = category.lower(), name.lower()
    for found, words in _WORDS:
        if words.search(category) or words.search(name):
            return found
    if category in _CONTROL:
        return "control"
    if category.startswith("custom-call"):
        return _kernel(f"{name} {target.lower()}", scope.lower())
    if holds:
        return _fusion(holds)
    if _MATMULS.search(category):
        return "matmul"
    return "copy" if _COPIES.search(category) else "vector"


def _kernel(words: str, scope: str) -> OpClass:
    """By its own name; one without a name by where it was called."""
    if _MATMULS.search(words):
        return "matmul"
    unnamed = words.startswith(("custom-call", "tpu_custom_call"))
    return "attention kernel" if _ATTENTION.search(scope if unnamed else words) else "kernel"


def _fusion(holds: frozenset[str]) -> OpClass:
    """By what it holds: a matmul, only moves, or arithmetic."""
    if holds & {"dot", "convolution"}:
        return "matmul"
    rest = holds - {"parameter", "constant", "tuple", "get-tuple-element", "iota", "broadcast"}
    return "copy" if rest and all(_COPIES.search(code) for code in rest) else "vector"


@lru_cache(maxsize=4096)  # every core of a slice names the same ops
def layer_of(op_name: str) -> str:
    """The named scopes an op was traced under, and whether it is of the backward pass.

    >>> layer_of("jit(step)/transpose(jvp(mlp.in))/dot_general")
    'mlp.in (backward)'
    >>> layer_of("jit(step)/jvp()/while/body/closed_call/mlp_out/bf,fd->bd/dot_general")
    'mlp_out'
    """
    path = op_name.partition(":")[0]
    kept = [part for part in map(_unwrapped, _parts(path)[:-1]) if not _MACHINERY.match(part)]
    backward = " (backward)" if "transpose(" in path else ""
    return ("/".join(kept) or UNNAMED) + backward


def _parts(path: str) -> list[str]:
    """Split at slashes that are not in brackets."""
    parts: list[str] = []
    depth, last = 0, 0
    for at, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append(path[last:at])
            last = at + 1
    return [*parts, path[last:]]


def _unwrapped(part: str) -> str:
    """A scope without the transformations around it; of nested ones the text, once each."""
    for _ in range(8):
        inner = _TRANSFORM.match(part)
        if inner is None:
            break
        part = inner[1]
    return part
