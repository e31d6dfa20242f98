"""Recipes about whole models: parameters and FLOPs of chapters 4 to 7, read off graphs.

The book leaves norms and routers out of its totals, so the recipes add up the parts it names.
"""

import math
from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe
from rooflight.book.entry import Entry
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, dim_sizes, op_flops
from rooflight.models.graph.ops import Graph
from rooflight.models.presets import load_model
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Repeat

PARTS = {
    "ffw": ("mlp", "experts"),
    "attn": ("attention",),
    "vocab": ("embedding", "head"),
    "unembed": ("head",),
    "norms": ("attention_in_norm", "mlp_in_norm"),
}
_COUNTED = ("mlp", "experts", "attention", "embedding", "head")


def model_of(e: Entry) -> ModelSpec:
    """The preset an entry names, or the model of its sizes; what it does not give is one."""
    if "model" in e.inputs:
        return load_model(e.text("model"))
    sizes = {k: e.whole(k) if k in e.inputs else 1 for k in ("L", "D", "F", "N", "H", "V")}
    attention = Attention(sizes["N"], e.whole("K") if "K" in e.inputs else sizes["N"], sizes["H"])
    mlp: Mlp | Moe = Mlp(sizes["F"], is_gated="plain" not in e.inputs)
    if "E" in e.inputs:
        mlp = Moe(e.whole("E"), e.whole("k"), mlp)
    layers = (Repeat((Block(attention, mlp),), sizes["L"]),)
    return ModelSpec("book", e.title, sizes["D"], sizes["V"], layers, is_tied="tied" in e.inputs)


def _counts(e: Entry) -> Derivation:
    """Parameters of the parts an entry asks for, and of all that the book counts."""
    graph = model_graph(model_of(e))
    found = {name: count_params(graph, parts=parts) for name, parts in PARTS.items()}
    total = count_params(graph, parts=_COUNTED)
    found |= {"mlp": found["ffw"], "params": total, "total": total}
    values = {n: found[n] for n in e.expected if n in found}
    lines = tuple(Line(f"{n}, off the graph", v, "param") for n, v in values.items())
    return Derivation(values, lines)


def _one_part(part: str) -> Recipe:
    def recipe(e: Entry) -> Derivation:
        count = count_params(model_graph(model_of(e)), parts=PARTS[part])
        line = Line(f"params of {', '.join(PARTS[part])}, off the graph", count, "param")
        return Derivation({"params": count}, (line,))

    return recipe


def _total_and_share(e: Entry) -> Derivation:
    graph = model_graph(model_of(e))
    total, ffw = count_params(graph, parts=_COUNTED), count_params(graph, parts=PARTS["ffw"])
    lines = (Line("all params but norms", total, "param"), Line("feed-forward", ffw, "param"))
    return Derivation({"params": total, "ffw_fraction": ffw / total}, lines)


def _attention_share(e: Entry) -> Derivation:
    graph = model_graph(model_of(e))
    attention, ffw = (count_params(graph, parts=PARTS[p]) for p in ("attn", "ffw"))
    lines = (Line("attention", attention, "param"), Line("feed-forward", ffw, "param"))
    return Derivation({"fraction": attention / (attention + ffw)}, lines)


def _sizes(e: Entry) -> Derivation:
    """The letters of a preset."""
    model = load_model(e.text("model"))
    (block,) = model.blocks
    assert isinstance(block.mlp, Mlp), f"{e.id}: {model.name} has experts"
    heads = {"N": block.attention.num_heads, "K": block.attention.num_kv_heads}
    found = heads | {"q_heads": heads["N"], "kv_heads": heads["K"], "L": model.num_layers}
    found |= {"D": model.d_model, "F": block.mlp.width, "H": block.attention.head_dim}
    found["V"] = model.vocab
    values = {name: found[name] for name in e.expected}
    return Derivation(
        values, tuple(Line(f"{n} of {model.name}", v, "1") for n, v in values.items())
    )


def _mixture(e: Entry) -> Derivation:
    """A mixture beside the dense model of the same sizes."""
    graph = model_graph(model_of(e))
    dense = _without_experts(e)
    total = count_params(graph, parts=_COUNTED)
    active = count_params(graph, parts=_COUNTED, active=True)
    lines = (
        Line("all params", total, "param"),
        Line("those a token uses", active, "param"),
        Line("the dense model", dense, "param"),
    )
    ratios = {"ratio_total": total / dense, "ratio_active": active / dense}
    return Derivation({"total": total, "active": active} | ratios, lines)


def _without_experts(e: Entry) -> int:
    model = model_of(e)
    (block,) = model.blocks
    assert isinstance(block.mlp, Moe), f"{e.id} has no experts"
    layers = (Repeat((Block(block.attention, block.mlp.expert),), model.num_layers),)
    dense = ModelSpec("dense", "", model.d_model, model.vocab, layers, is_tied=model.is_tied)
    return count_params(model_graph(dense), parts=_COUNTED)


def _sparsity(e: Entry) -> Derivation:
    moe = next(b.mlp for b in load_model(e.text("model")).blocks if isinstance(b.mlp, Moe))
    lines = (
        Line("routed experts E", moe.num_experts, "experts"),
        Line("experts of a token k", moe.experts_per_token, "experts"),
    )
    return Derivation({"deepseek": moe.num_experts / moe.experts_per_token}, lines)


def flops_of(graph: Graph, *, batch: int, seq: int, ops: tuple[str, ...]) -> int:
    """Forward FLOPs of ops by name, or by part with a trailing dot; every pair of positions."""
    sizes = dim_sizes(graph, batch=batch, seq=seq)
    chosen = [op for op in graph.ops if op.name.startswith(ops)]
    return math.ceil(sum(op.count * op_flops(op, sizes, causal=False) for op in chosen))


RECIPES: Mapping[str, Recipe] = {
    "transformers.layer_params": _counts,
    "transformers.q1_params": _counts,
    "transformers.q1_attn_fraction": _attention_share,
    "transformers.moe_sparsity": _sparsity,
    "training.q1_llama13b_ffw": _one_part("ffw"),
    "training.q1_llama13b_attn": _one_part("attn"),
    "training.q1_llama13b_vocab": _one_part("vocab"),
    "training.q1_llama13b_total": _counts,
    "applied_training.llama70b_config": _sizes,
    "applied_training.llama70b_ffw": _one_part("ffw"),
    "applied_training.llama70b_vocab": _one_part("vocab"),
    "applied_training.llama70b_attn": _one_part("attn"),
    "applied_training.llama70b_total": _total_and_share,
    "applied_training.ex2_405b_params": _counts,
    "applied_training.llama8b_params": _counts,
    "inference.llama13b_params": _counts,
    "inference.llama3_8b_heads": _sizes,
    "inference.q1_params": _counts,
    "inference.q5_moe_params": _mixture,
}
