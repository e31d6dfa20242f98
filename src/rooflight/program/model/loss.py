"""Cross-entropy in chunks of tokens: the logits of a whole batch are never there at once.

    h[B_X,T,D] * W_head[D,V_Y] -> logits[B_X,T,V_Y]        some tokens at a time
    max, sum exp and the target's logit: AllReduce_Y of three numbers per token
    loss = sum of weight * (log sum exp - target) / total weight: AllReduce_X

The end of the loss is a number, so its gradients follow chunk by chunk in the same pass and only
have to be scaled in the backward pass: logits are made once.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Axes, Tensor
from rooflight.models.layout.constraints import Constraint
from rooflight.program.attention.ring_order import unzigzag, zigzag
from rooflight.program.matmuls import Scope
from rooflight.program.model.forward import Program, frame_scope, hidden
from rooflight.program.model.layers import softcapped
from rooflight.program.model.params import Tree
from rooflight.program.shardings import map_blocks, spec_of
from rooflight.program.varying import align, vary, varying_axes


def logits(program: Program, params: Tree, tokens: jax.Array) -> jax.Array:
    """tokens[B,T] -> logits[B,T,V], all of them: for short sequences."""
    h = hidden(program, params, tokens)
    found = frame_scope(program, params).matmul("head.logits", h)
    found = unzigzag(found.astype(jnp.float32), program.constraints.context)
    return softcapped(found, program.model.softcap)


def cross_entropy(
    program: Program, params: Tree, tokens: jax.Array, targets: jax.Array, weights: jax.Array
) -> jax.Array:
    """The sum over all tokens [B,T] of weight times minus log probability of the target."""
    return head_loss(program, params, hidden(program, params, tokens), targets, weights)


def head_loss(
    program: Program, params: Tree, h: jax.Array, targets: jax.Array, weights: jax.Array
) -> jax.Array:
    """The same from h[B,T,D] on, its tokens in the order that `embed` left."""
    targets, weights = (zigzag(x, program.constraints.context) for x in (targets, weights))
    scope = frame_scope(program, params)
    op, constraint = scope.ops["head.logits"], scope.constraint("head.logits")
    h, table = _before_the_layers(h, scope.weights[op.params[0]])
    scope = replace(scope, weights={**scope.weights, op.params[0]: table})
    with jax.named_scope(op.name):
        table = scope.weight(op.params[0], constraint, 1)
        bias = scope.beside(op.params[1]) if op.params[1:] else None
        return _mapped(program, scope, constraint, (h, table), bias, (targets, weights))


@jax.custom_vjp
def _before_the_layers(h: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as they are; the table's gradient is scattered before that of `h` goes on.

    Nobody waits for it, so a scheduler would leave it whole until the layers are done.
    """
    return h, table


def _nothing_kept(h: jax.Array, table: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
    return (h, table), None


def _barrier(_: None, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return lax.optimization_barrier(gradients)


_before_the_layers.defvjp(_nothing_kept, _barrier)


def _mapped(
    program: Program,
    scope: Scope,
    constraint: Constraint,
    factors: tuple[jax.Array, jax.Array],
    bias: jax.Array | None,
    rows: tuple[jax.Array, jax.Array],
) -> jax.Array:
    """The loss of each device's tokens over its part of the vocabulary, then the sums."""
    place = constraint.result[0]
    head = Head(place, is_tied=program.model.is_tied, softcap=program.model.softcap)
    row = spec_of(Tensor("targets", place.dims[:2], place.axes[:2]))

    def local(
        h: jax.Array,
        table: jax.Array,
        bias: jax.Array | None,
        targets: jax.Array,
        weights: jax.Array,
    ) -> jax.Array:
        total = _summed(head, program.loss_chunk, align((h, table, bias)), (targets, weights))
        assert isinstance(total, jax.Array)
        return lax.psum(total, head.tokens) if head.tokens else total

    specs = [spec_of(t, reduced=constraint.pending(i)) for i, t in enumerate(constraint.factors)]
    beside = None if bias is None else jax.typeof(bias).sharding.spec
    moved = [jax.reshard(x, row) for x in rows]
    stages = program.constraints.layout.stages
    run = map_blocks(local, (*specs, beside, row, row), PartitionSpec(), stages=stages)
    return run(scope.operand(factors[0], constraint, 0), factors[1], bias, *moved)


@dataclass(frozen=True, slots=True)
class Head:
    """How the logits of a device lie: logits[B_X,T,V_Y]{U_Z}."""

    place: Tensor
    is_tied: bool
    softcap: float | None

    @property
    def tokens(self) -> Axes:
        return self.place.axes[0] + self.place.axes[1]

    @property
    def vocab(self) -> Axes:
        return self.place.axes[2]

    @property
    def sums(self) -> Axes:
        return self.place.unreduced

    def logits(self, h: jax.Array, table: jax.Array, bias: jax.Array | None) -> jax.Array:
        found = jnp.einsum("td,vd->tv" if self.is_tied else "td,dv->tv", h, table)
        found = found.astype(jnp.float32)
        found = lax.psum(found, self.sums) if self.sums else found
        return softcapped(found if bias is None else found + bias.reshape(-1), self.softcap)

    def over_vocab(self, value: jax.Array) -> jax.Array:
        return lax.psum(value, self.vocab) if self.vocab else value


Operands = tuple[jax.Array, jax.Array, jax.Array | None]  # h[B,T,D], the table, a bias
Rows = tuple[jax.Array, jax.Array]  # targets and weights [B,T]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _summed(head: Head, chunk: int, operands: Operands, rows: Rows) -> jax.Array:
    """The weighted loss of a device's tokens, `chunk` or a few less at a time."""
    h, table, bias = operands

    def add(total: jax.Array, some: list[jax.Array]) -> tuple[jax.Array, None]:
        return total + _chunk_loss((some[0], table, bias), (some[1], some[2]), head), None

    return lax.scan(add, _zero(head, h), _chunks((h, *rows), chunk))[0]


def _summed_forward(
    head: Head, chunk: int, operands: Operands, rows: Rows
) -> tuple[jax.Array, Operands]:
    """The loss, and the gradients that it would have if it were the end of all."""
    h, *fixed = operands

    def add(
        sums: tuple[jax.Array, list[jax.Array | None]], some: list[jax.Array]
    ) -> tuple[tuple[jax.Array, list[jax.Array | None]], jax.Array]:
        total, before = sums
        taken = jax.value_and_grad(_chunk_loss)
        loss, (dh, *more) = taken((some[0], *fixed), (some[1], some[2]), head)
        return (total + loss, jax.tree.map(jnp.add, before, more)), dh

    zeros = jax.tree.map(jnp.zeros_like, fixed)
    sums, dh = lax.scan(add, (_zero(head, h), zeros), _chunks((h, *rows), chunk))
    total, (dtable, dbias) = sums
    assert dtable is not None
    return total, (dh.reshape(h.shape), dtable, dbias)


def _summed_backward(
    head: Head, chunk: int, gradients: Operands, d_total: jax.Array
) -> tuple[Operands, None]:
    def scaled(gradient: jax.Array) -> jax.Array:
        return (gradient * d_total).astype(gradient.dtype)

    del head, chunk
    return jax.tree.map(scaled, gradients), None


_summed.defvjp(_summed_forward, _summed_backward)


def _zero(head: Head, h: jax.Array) -> jax.Array:
    mapped = varying_axes(h) - {*head.vocab, *head.sums}  # also by a pipeline around this
    return vary(jnp.zeros((), jnp.float32), mapped)


def _chunks(rows: tuple[jax.Array, ...], chunk: int) -> list[jax.Array]:
    """Arrays of tokens [B,T,...] as [chunks, tokens, ...]."""
    flat = [x.reshape(-1, *x.shape[2:]) for x in rows]
    size = next(n for n in range(min(chunk, len(flat[0])), 0, -1) if len(flat[0]) % n == 0)
    return [x.reshape(-1, size, *x.shape[1:]) for x in flat]


def _chunk_loss(operands: Operands, rows: Rows, head: Head) -> jax.Array:
    targets, weights = rows
    return (_losses(head, head.logits(*operands), targets) * weights).sum()


def _losses(head: Head, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Minus log probability [t] of the targets, the vocabulary split over some axes."""
    top = lax.stop_gradient(logits).max(-1)
    top = lax.pmax(top, head.vocab) if head.vocab else top
    total = head.over_vocab(jnp.exp(logits - top[:, None]).sum(-1))
    size = logits.shape[1]
    index = targets - (lax.axis_index(head.vocab) * size if head.vocab else 0)
    found = jnp.take_along_axis(logits, jnp.clip(index, 0, size - 1)[:, None], 1)[:, 0]
    mine = (index >= 0) & (index < size)
    return top + jnp.log(total) - head.over_vocab(jnp.where(mine, found, 0))
