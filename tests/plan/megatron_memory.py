"""Trainings of Megatron-LM's own tests replayed, each with its layout and settings."""

import re
from dataclasses import replace
from math import gcd
from pathlib import Path

import yaml

from rooflight.dtypes import DTYPES
from rooflight.measure.published.degrees import measured_chip
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Norm, Repeat
from rooflight.plan.training.memory.count import memory_by_stage
from rooflight.plan.training.memory.framework import FRAMEWORKS, Framework, parse_framework
from rooflight.plan.training.memory.job import RECIPES, Job, Microbatching
from rooflight.plan.training.memory.remat import parse_remat

from .measured_memory import Replay, Row

LARGE_GIB = 8
_FREQUENCY = re.compile(r"\[0\]\*(\d+)")  # ([0]*1+[1]*15): so many dense layers first


def ci_replays(framework: str | None = None) -> list[Replay]:
    """The last rank of every test, by its settings or as in the named framework."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    found: list[Replay] = []
    for row in document["runs"]:
        job = job_of(row, document["models"][row["model"]])
        if framework:
            job = replace(job, framework=FRAMEWORKS[framework])
        size = "megatron-ci" if row["mem_gib"] >= LARGE_GIB else f"megatron-ci < {LARGE_GIB} GiB"
        named = row | {"framework": size, "measured_gib": row["mem_gib"]}
        found.append(Replay(named, memory_by_stage(job)[-1]))
    return found


def job_of(row: Row, sizes: Row) -> Job:
    """A test as a job. Copies of the optimizer are as many runs side by side: one is counted."""
    copies = row["flags"].get("dist_optimizer_instances", 1)
    degrees = {"tp": 1, "dp": 1, "cp": 1, "pp": 1, "vp": 1, "ep": 1} | row["layout"]
    degrees["dp"] //= copies
    batch, flags = row["batch"], row["flags"]
    graph = model_graph(_model(row["model"], sizes, batch["seq_len"]))
    text, axes = _layout(degrees, has_experts="experts" in sizes, fsdp=bool(flags.get("fsdp")))
    return Job(
        graph,
        parse_layout(text),
        axes,
        measured_chip(row["chip"]).chip,
        batch=batch["global_seqs"] // copies,
        seq=batch["seq_len"],
        recipe=RECIPES["18"],
        remat=parse_remat("block" if row.get("remat", "").startswith("full") else "none", graph),
        zero=1 if flags.get("dist_optimizer") else 0,
        micro=Microbatching(
            batch["grad_accum"],
            "interleaved" if degrees["vp"] > 1 else "1f1b",
            degrees["vp"],
            _chunks(degrees, flags, sizes),
        ),
        framework=_framework(flags, sizes, degrees["pp"]),
    )


def _framework(flags: Row, sizes: Row, stages: int) -> Framework:
    settings = ["compiled-loss" if flags.get("ce_fusion") else "unfused-loss"]
    is_local = flags.get("impl") == "local"
    settings += ["unfused-attention"] if is_local or flags.get("attention") == "unfused" else []
    settings += ["dropout"] if flags["dropout"][1] else []
    settings += ["unfused-gradients"] if flags.get("no_grad_accum_fusion") else []
    found = parse_framework("+".join(("megatron", *settings)))
    more = [DTYPES["f32"]] * sizes.get("mtp_layers", 0)  # its softmax waits for the main loss
    # Gradients of the head that are put off wait for the last microbatches of all stages.
    more += [DTYPES["bf16"]] * (stages if flags.get("defer_embed_wgrad") else 0)
    return replace(found, loss=(*found.loss, *more))


def _chunks(degrees: Row, flags: Row, sizes: Row) -> tuple[int, ...]:
    """Layers of every chunk where a test does not cut them evenly."""
    layers, stages = sizes["layers"], degrees["pp"]
    chunks = stages * degrees["vp"]
    if "first_stage_layers" in degrees:
        first, last = degrees["first_stage_layers"], degrees["last_stage_layers"]
        return (first, *[(layers - first - last) // (stages - 2)] * (stages - 2), last)
    if flags.get("embed_as_pipeline_layer"):
        each = (layers + 2) // chunks
        return (each - 1, *[each] * (chunks - 2), each - 1)
    if stages > 1 and "mtp_layers" in sizes:
        return (*[layers // chunks] * (chunks - 1), layers // chunks + sizes["mtp_layers"])
    return ()


def _layout(degrees: Row, *, has_experts: bool, fsdp: bool) -> tuple[str, dict[str, int]]:
    """Experts take what tensor parallelism leaves them, then of the data and context axes."""
    tp, left = degrees["tp"], degrees["ep"]
    axes: dict[str, int] = {}
    experts = ""
    parts: list[str] = []
    for scheme, degree, most, inner, outer in (
        ("sp" if degrees.get("sp") else "mp", tp, tp // degrees.get("etp", tp), "A", "B"),
        ("fsdp" if fsdp else "dp", degrees["dp"], degrees["dp"], "C", "D"),
        ("cp", degrees["cp"], degrees["cp"], "E", "F"),
    ):
        shared = gcd(left, most)
        axes |= {inner: shared, outer: degree // shared}
        parts.append(f"{scheme}={inner}{outer}")
        experts += inner
        left //= shared
    parts += [f"ep={experts}"] if has_experts else []
    if degrees["pp"] > 1:
        axes["P"] = degrees["pp"]
        parts.append("pp=P")
    return ",".join(parts), axes


def _model(name: str, row: Row, seq: int) -> ModelSpec:
    """A layer that predicts a second token counts as one more layer."""
    latent, head = None, row.get("head_dim", 0)
    if "kv_lora" in row:
        latent = Latent(row["q_lora"], row["kv_lora"], row["qk_rope"], row["v_head"])
        head = row["qk_nope"]
    bias, gated = row["bias"], row["gated_mlp"]
    attention = Attention(
        row["heads"],
        row["kv_heads"],
        head,
        latent=latent,
        qkv_bias=bias and latent is None,
        out_bias=bias,
    )
    dense = Block(attention, Mlp(row["d_ff"], is_gated=gated, has_bias=bias))
    num_layers = row["layers"] + row.get("mtp_layers", 0)
    layers: tuple[Repeat, ...] = (Repeat((dense,), num_layers),)
    if "experts" in row:
        written = _FREQUENCY.search(row.get("moe_layer_freq", ""))
        first = int(written[1]) if written else 0
        width = row.get("shared_expert_d_ff")
        shared = Mlp(width, is_gated=gated) if width else None
        moe = Moe(row["experts"], row["topk"], Mlp(row["moe_d_ff"], is_gated=gated), shared)
        routed = Repeat((Block(attention, moe),), num_layers - first)
        layers = (*((Repeat((dense,), first),) if first else ()), routed)
    has_bias = row["norm"] == "layer"
    return ModelSpec(
        name,
        name,
        row["d_model"],
        row["vocab"],
        layers,
        norm=Norm("layer" if has_bias else "rms", has_bias=has_bias),
        is_tied=row["tied"],
        num_positions=seq if row["pos"] == "learned" else 0,
    )
