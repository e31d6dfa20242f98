"""`Fragment`: ops being written down, one line each, with their weights read off the line.

In: contractions as text. Out: ops, params and caches of one part of a model. A fragment grows
while a graph is built and is not seen outside of it.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from rooflight.algebra.notation import Tensor, parse_contraction, parse_tensor
from rooflight.models.graph.ops import Cache, Kind, Mask, Op, Param


@dataclass(slots=True)
class Fragment:
    """One part of a block or of the frame around the blocks."""

    ops: list[Op] = field(default_factory=list[Op])
    params: list[Param] = field(default_factory=list[Param])
    caches: list[Cache] = field(default_factory=list[Cache])

    def op(
        self,
        name: str,
        text: str,
        kind: Kind = "matmul",
        *,
        mask: Mask | None = None,
        active: Fraction = Fraction(1),
        bias: str = "",
    ) -> None:
        """Adds `part.op`; each operand with a capital name becomes a param of the part."""
        contraction = parse_contraction(text)
        weights = [t for t in contraction.operands if t.name[0].isupper()]
        weights += [parse_tensor(bias)] if bias else []
        part = name.partition(".")[0]
        for tensor in weights:
            self.param(part, tensor, active=active)
        names = tuple(f"{part}.{t.name}" for t in weights)
        self.ops.append(Op(name, kind, contraction, mask=mask, params=names))

    def param(self, part: str, tensor: Tensor | str, *, active: Fraction = Fraction(1)) -> None:
        """Adds a param; a tensor as text where no op names it."""
        tensor = parse_tensor(tensor) if isinstance(tensor, str) else tensor
        self.params.append(Param(f"{part}.{tensor.name}", tensor, active=active))

    def cache(self, text: str, *, window: int | None) -> None:
        tensor = parse_tensor(text)
        self.caches.append(Cache(f"attention.{tensor.name}", tensor, window=window))

    def norm(self, part: str, text: str, *, has_scale: bool = True, has_bias: bool = False) -> None:
        """Adds a norm over the last dim of `x[...]`, written `x[B,T,D] -> h`."""
        source, _, result = text.partition(" -> ")
        dims = parse_tensor(source).dims
        scale = f" * Scale[{dims[-1]}]" if has_scale else ""
        target = f"{result}[{','.join(dims)}]"
        bias = f"Bias[{dims[-1]}]" if has_bias else ""
        self.op(f"{part}.norm", f"{source}{scale} -> {target}", "elementwise", bias=bias)
