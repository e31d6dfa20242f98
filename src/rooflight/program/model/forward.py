"""`Program`: a model under the constraints of a layout, and its forward pass.

In: a `ModelSpec`, `Constraints`, weights as a `Tree`. Out: functions to trace under their mesh:

    tokens[B,T] -> x[B,T,D] -> the layers, one scan a run of equal patterns -> h[B,T,D]

Every matmul is the graph's op of that name; this file only says in which order they are done.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Axes, Tensor
from rooflight.errors import UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Op
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.slots import Schedule
from rooflight.models.spec import Block, Mlp, ModelSpec, NormPlace, Repeat
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.program.attention.kernels import attend
from rooflight.program.attention.ring_order import zigzag
from rooflight.program.matmuls import Scope
from rooflight.program.model.attention import Kernel, Memory, attention
from rooflight.program.model.experts import routed_mlp
from rooflight.program.model.layers import activate
from rooflight.program.model.params import (
    JAX_DTYPES,
    Specs,
    TensorSpec,
    Tree,
    map_specs,
    tensor_specs,
)
from rooflight.program.pipeline.layers import Staging, staging_of
from rooflight.program.shardings import map_blocks, spec_of


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: everything but the arrays."""

    model: ModelSpec
    constraints: Constraints
    weights: str = "f32"  # dtype in which weights are stored
    compute: str = "f32"  # dtype of matmuls and activations
    gradients: str = "f32"  # dtype in which gradients of microbatches add up
    master: str | None = None  # dtype of a copy of the weights that the optimizer updates instead
    zero: int = 0  # 1: the optimizer splits its state over the data axes too
    remat: str = "none"  # a policy of `program.model.remat`
    capacity: float | None = None  # places of an expert over balanced; None drops no token
    loss_chunk: int = 2048  # tokens of a device whose logits are there at once
    kernel: Kernel = attend
    schedule: Schedule | None = None  # of the pipeline, where the layout has stages
    is_inference: bool = False  # no gradient is asked for: matmuls may be FFI custom calls

    def __post_init__(self) -> None:
        for block in self.model.blocks:
            if block.attention.shares_kv or block.attention.has_alibi:
                raise UsageError(
                    f"{self.model.name} has layers that share keys or use ALiBi; the program "
                    "has neither",
                    hint="choose a model with rotary or learned positions and its own keys",
                )
            rope = block.attention.rope
            if rope and rope.scaling and rope.scaling.kind == "unknown":
                raise UsageError(
                    f"{self.model.name} stretches its rotary positions in a way that the program "
                    f"does not have: {'; '.join(self.model.not_understood)}",
                    hint="choose a model with linear, llama3, yarn or longrope positions, or none",
                )

    @property
    def staging(self) -> Staging | None:
        """Where layers are that are cut into the stages of a pipeline."""
        return None if self.schedule is None else staging_of(self.model, self.schedule)

    @property
    def runs(self) -> tuple[Repeat, ...]:
        """What is scanned over: all layers, or those of one stage."""
        return self.model.layers if self.staging is None else self.staging.runs

    @property
    def specs(self) -> Specs:
        stored = self.model.layers if self.staging is None else self.staging.stored
        return tensor_specs(self.model, self.weights, runs=stored)


def with_pending_gradients(program: Program, params: Tree, *, stacked: Axes | None = None) -> Tree:
    """The same weights, typed so that their gradients are summed over devices only when asked.

    A weight whose every matmul leaves its gradient pending over an axis (data parallelism) is
    marked as reduced over it; `lax.scan` over microbatches then adds up local parts.
    """
    constraints = program.constraints

    def marked(spec: TensorSpec) -> PartitionSpec:
        once = constraints.once(spec.tensor, spec.block)
        if stacked is None or spec.times is None:
            return spec.spec(constraints, reduced=once)
        return spec_of(constraints.layout.of_weight(spec.tensor), reduced=once, stacked=stacked)

    specs = map_specs(marked, program.specs)
    return jax.tree.map(jax.reshard, params, specs)


def embed(
    program: Program, params: Tree, tokens: jax.Array, positions: jax.Array | None = None
) -> jax.Array:
    """tokens[B,T] -> x[B,T,D], the matmul of a one-hot array with the table, as a lookup.

    Tokens are at `positions` [B,T], or else from 0 on; split over devices in zigzag order.
    """
    scope, model = frame_scope(program, params), program.model
    tokens = zigzag(tokens, program.constraints.context)
    constraint = scope.constraint("embedding.tokens")
    onehot = constraint.factors[0]
    ids = spec_of(Tensor("ids", onehot.dims[:2], onehot.axes[:2]))
    with jax.named_scope("embedding.tokens"):
        look_up = map_blocks(
            partial(_look_up, vocab=onehot.axes_of("V")),
            (ids, spec_of(constraint.factors[1], reduced=constraint.pending(1))),
            spec_of(constraint.result[0]),
            stages=program.constraints.layout.stages,
        )
        x = look_up(jax.reshard(tokens, ids), scope.weight("embedding.W_embed", constraint, 1))
        for tensor in constraint.result[1:]:
            x = jax.reshard(x, spec_of(tensor))
        if model.num_positions:
            split = Tensor("W_positions", ("L", "D"), ((), constraint.result[-1].axes_of("D")))
            rows = scope.weights["embedding.W_positions"].astype(scope.dtype)
            if positions is None:
                positions = zigzag(jnp.arange(x.shape[1])[None], program.constraints.context)
            x = x + _rows_at(jax.reshard(rows, spec_of(split)), positions, x)
        return scaled_by(x, model.embedding_scale)


def scaled_by(x: jax.Array, factor: float | None) -> jax.Array:
    return x if factor is None else x * factor


def check_length(model: ModelSpec, seq: int) -> None:
    """Raises where positions of longrope are stretched by other factors beyond a length."""
    for rope in (block.attention.rope for block in model.blocks):
        scaling = rope.scaling if rope else None
        if scaling and scaling.kind == "longrope" and seq > scaling.original_seq:
            raise UsageError(
                f"{model.name} turns all positions of a sequence otherwise once it is longer than "
                f"{scaling.original_seq} tokens (longrope); the program has no such change",
                hint=f"keep sequences within {scaling.original_seq} tokens, got {seq}",
            )


def _rows_at(rows: jax.Array, positions: jax.Array, x: jax.Array) -> jax.Array:
    """The learned vectors of positions, where x[B,T,D] is; of all rows, or of each."""
    place = jax.typeof(x).sharding.spec
    if positions.shape[0] == 1:
        place = PartitionSpec(None, *place[1:])
    at = jax.reshard(positions, PartitionSpec(*place[:2]))
    return rows.at[at].get(out_sharding=place)


def _look_up(ids: jax.Array, table: jax.Array, *, vocab: Axes) -> jax.Array:
    """Rows of a device's part of the table, zero where another device has the row."""
    at = ids - (lax.axis_index(vocab) * table.shape[0] if vocab else 0)
    return table.at[at].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def hidden(program: Program, params: Tree, tokens: jax.Array) -> jax.Array:
    """tokens[B,T] -> h[B,T,D], what the head reads."""
    if program.schedule is not None:
        raise UsageError(
            f"the weights of {program.model.name} are stacked by the stages of a pipeline",
            hint="build the program of a layout without stages",
        )
    x = embed(program, params, tokens)
    for run in range(len(program.model.layers)):
        x = forward_run(program, run, params.layers[run], x)
    return finish(program, params, x)


def finish(program: Program, params: Tree, x: jax.Array) -> jax.Array:
    """From the last layer's x[B,T,D] to h[B,T,D]."""
    if program.model.has_final_norm:
        x = frame_scope(program, params).norm("final_norm.norm", x, program.model.norm)
    return scaled_by(x, program.model.logit_scale)


def forward_run(
    program: Program,
    run: int,
    weights: tuple[dict[str, jax.Array], ...],
    x: jax.Array,
    is_real: jax.Array | None = None,
) -> jax.Array:
    """The layers of a run, or as many of them as the weights are stacked: one scan.

    `is_real` [layers, block of the pattern] says which of them are more than padding of a stage.
    """
    blocks, specs = program.runs[run].blocks, program.specs.layers[run]
    policy = remat_policy(program.remat, program.model)
    layers = [
        policy(partial(forward_block, program, block, described))
        for block, described in zip(blocks, specs, strict=True)
    ]

    def pattern(x: jax.Array, stacked: Stacked) -> tuple[jax.Array, None]:
        weights, is_real = stacked
        for i, (layer, mine) in enumerate(zip(layers, weights, strict=True)):
            y = layer(mine, x)
            x = y if is_real is None else jnp.where(is_real[i], y, x)
        return x, None

    return lax.scan(pattern, x, (weights, is_real))[0]


Stacked = tuple[tuple[dict[str, jax.Array], ...], jax.Array | None]


def frame_scope(program: Program, params: Tree) -> Scope:
    """The matmuls around the layers."""
    return _scope(program, None, program.specs.frame, params.frame)


def _scope(
    program: Program,
    block: int | None,
    specs: Mapping[str, TensorSpec],
    weights: Mapping[str, jax.Array],
) -> Scope:
    ops = _ops(program.model, block)
    compute = JAX_DTYPES[program.compute]
    return Scope(program.constraints, block, ops, specs, weights, compute, program.is_inference)


@lru_cache(maxsize=256)
def _ops(model: ModelSpec, block: int | None) -> dict[str, Op]:
    return {op.name: op for op in model_graph(model).ops if op.block == block}


def forward_block(
    program: Program,
    block: Block,
    specs: Mapping[str, TensorSpec],
    weights: Mapping[str, jax.Array],
    x: jax.Array,
    *,
    memory: Memory | None = None,
    positions: jax.Array | None = None,
) -> jax.Array:
    """One layer: x[B,T,D] -> x[B,T,D]; `memory` and `positions` as `attention` takes them."""
    model = program.model
    scope = _scope(program, model.blocks.index(block), specs, weights)

    def normed(place: NormPlace, source: jax.Array) -> jax.Array:
        if place not in block.norms:
            return source
        return scope.norm(f"{place}_norm.norm", source, model.norm)

    x = checkpoint_name(x, "x")
    start = normed("block_in", x)
    source = normed("attention_in", start)
    attended = attention(
        scope,
        block.attention,
        source,
        norm=model.norm,
        kernel=program.kernel,
        memory=memory,
        positions=positions,
    )
    attended = scaled_by(normed("attention_out", attended), model.residual_scale)
    if not block.is_parallel:
        with jax.named_scope("attention.add"):
            x = start = checkpoint_name(x + attended, "attention.add")
        attended = None
    fed = normed("mlp_out", _feed(scope, program, block, normed("mlp_in", start)))
    fed = scaled_by(fed, model.residual_scale)
    with jax.named_scope("mlp.add"):
        return x + fed if attended is None else x + attended + fed


def _feed(scope: Scope, program: Program, block: Block, m: jax.Array) -> jax.Array:
    if not isinstance(block.mlp, Mlp):
        return routed_mlp(scope, block.mlp, m, capacity=program.capacity)
    gate = scope.matmul("mlp.gate", m) if block.mlp.is_gated else None
    up = scope.matmul("mlp.in", m)
    with jax.named_scope("mlp.act"):
        activated = scope.apart(activate(block.mlp, *scope.apart((gate, up))))
        activated = checkpoint_name(activated, "mlp.act")
    return scope.matmul("mlp.out", activated)


# Rematerialisation by name: the planner's policies as policies of `jax.checkpoint`.

Layer = Callable[..., jax.Array]


def remat_policy(text: str, model: ModelSpec) -> Callable[[Layer], Layer]:
    """What to wrap the function of a layer in; `@host` has what is saved wait in host memory."""
    ops = model_graph(model)
    remat = parse_remat(text, ops)
    names = [op.name for op in ops.ops if op.block is not None and remat.saves(op)]
    known = jax.checkpoint_policies
    policy = known.save_only_these_names(*names)
    if remat.on_host:
        policy = known.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["x", *names],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return partial(jax.checkpoint, policy=policy, prevent_cse=False)  # scan keeps passes apart
