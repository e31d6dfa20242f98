"""The contractions of one feed-forward layer: dense, or routed and shared experts.

In: an `Mlp` or a `Moe`. Out: lines of a `Fragment`.
"""

from fractions import Fraction

from rooflight.graph.fragment import Fragment
from rooflight.specs.model import Mlp, Moe


def write_mlp(part: Fragment, mlp: Mlp | Moe, source: str) -> None:
    """From the input `source[B,T,D]` to `fed[B,T,D]`."""
    if isinstance(mlp, Mlp):
        _dense(part, mlp, "mlp", source=source, width="F", result="fed")
    else:
        _moe(part, mlp, source)


def mlp_sizes(mlp: Mlp | Moe) -> dict[str, int]:
    """The sizes of the dims that the layer brings."""
    if isinstance(mlp, Mlp):
        return {"F": mlp.width}
    shared = {"Fs": mlp.shared.width} if mlp.shared else {}
    return {"E": mlp.num_experts, "Fe": mlp.expert.width} | shared


def tokens_per_expert(mlp: Mlp | Moe) -> dict[str, Fraction]:
    """C for each token of the batch: k / E."""
    return {"C": _share(mlp)} if isinstance(mlp, Moe) else {}


def _share(moe: Moe) -> Fraction:
    return Fraction(moe.experts_per_token, moe.num_experts)


def _dense(part: Fragment, mlp: Mlp, name: str, *, source: str, width: str, result: str) -> None:
    x, biased = f"{source}[B,T,D]", mlp.has_bias
    if mlp.is_gated:
        gate = f"{x} * W_gate[D,{width}] -> gate[B,T,{width}]"
        part.op(f"{name}.gate", gate, bias=f"B_gate[{width}]" if biased else "")
    up = f"{x} * W_in[D,{width}] -> up[B,T,{width}]"
    part.op(f"{name}.in", up, bias=f"B_in[{width}]" if biased else "")
    part.op(f"{name}.act", _activation(mlp, f"[B,T,{width}]"), "elementwise")
    down = f"hidden[B,T,{width}] * W_out[{width},D] -> {result}[B,T,D]"
    part.op(f"{name}.out", down, bias="B_out[D]" if biased else "")


def _moe(part: Fragment, moe: Moe, source: str) -> None:
    x = f"{source}[B,T,D]"
    bias = "B_router[E]" if moe.has_router_bias else ""
    part.op("router.scores", f"{x} * W_router[D,E] -> routed[B,T,E]", bias=bias)
    part.op("experts.dispatch", f"sent[B,T,E,C] * {x} -> sent_x[E,C,D]", "route")
    _experts(part, moe)
    part.op("experts.combine", "sent[B,T,E,C] * fed_x[E,C,D] -> fed[B,T,D]", "route")
    if moe.shared:
        _dense(part, moe.shared, "shared", source=source, width="Fs", result="fed_shared")
        if moe.has_shared_gate:
            part.param("shared", "W_shared_gate[D]")
        part.op("shared.add", "fed[B,T,D] * fed_shared[B,T,D] -> fed[B,T,D]", "elementwise")


def _experts(part: Fragment, moe: Moe) -> None:
    """The dense layer with an expert dim in every weight, and E, C in place of B, T."""
    active, biased = _share(moe), moe.expert.has_bias
    if moe.expert.is_gated:
        gate = "sent_x[E,C,D] * W_gate[E,D,Fe] -> gate[E,C,Fe]"
        part.op("experts.gate", gate, active=active, bias="B_gate[E,Fe]" if biased else "")
    up = "sent_x[E,C,D] * W_in[E,D,Fe] -> up[E,C,Fe]"
    part.op("experts.in", up, active=active, bias="B_in[E,Fe]" if biased else "")
    part.op("experts.act", _activation(moe.expert, "[E,C,Fe]"), "elementwise")
    down = "hidden[E,C,Fe] * W_out[E,Fe,D] -> fed_x[E,C,D]"
    part.op("experts.out", down, active=active, bias="B_out[E,D]" if biased else "")


def _activation(mlp: Mlp, dims: str) -> str:
    return f"gate{dims} * up{dims} -> hidden{dims}" if mlp.is_gated else f"up{dims} -> hidden{dims}"
