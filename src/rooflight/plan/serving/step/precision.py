"""`Precision`: what weights, caches and activations are stored in, and what is computed in.

In: text such as `int8` or `int8/bf16/bf16`. Out: a record. The three are independent: int8 weights
may be multiplied in bf16, and a bf16 model may keep an fp8 cache.
"""

from dataclasses import dataclass

from rooflight.dtypes import DTYPES, Dtype, parse_dtype
from rooflight.errors import ParseError


@dataclass(frozen=True, slots=True)
class Precision:
    """Element formats of a served model.

    >>> parse_precision("int8/bf16/bf16").weights.name, parse_precision("int8").compute
    ('int8', 'int8')
    """

    weights: Dtype = DTYPES["bf16"]
    kv: Dtype = DTYPES["bf16"]
    compute: str = "bf16"  # of matmuls with weights; attention is computed as activations are kept
    activations: Dtype = DTYPES["bf16"]
    whole: tuple[str, ...] = ()  # parts whose weights stay as activations are: ("head",)

    def __str__(self) -> str:
        return f"{self.weights.name}/{self.kv.name}/{self.compute}"

    def of_part(self, part: str) -> Dtype:
        """What the weights of a part of the model are stored in."""
        return self.activations if part in self.whole else self.weights

    def compute_of(self, part: str) -> str:
        """The dtype that matmuls with the weights of a part run in."""
        return self.activations.name if part in self.whole else self.compute


def parse_precision(text: str) -> Precision:
    """Reads WEIGHTS[/KV[/COMPUTE]]; what is left out is as the weights, caches of 8 bits or more.

    Engines keep the cache of 4-bit floats in fp8; int4 is of weights alone, and leaves it in bf16.

    >>> [str(parse_precision(text)) for text in ("nvfp4", "int4", "fp8")]
    ['nvfp4/fp8/nvfp4', 'int4/bf16/int4', 'fp8/fp8/fp8']
    """
    parts = text.split("/")
    if len(parts) > 3:
        raise ParseError(f"{text!r} names {len(parts)} dtypes", hint="write int8 or int8/bf16/bf16")
    names = [parse_dtype(p.strip()).name for p in parts]
    kept = names[0]
    if DTYPES[kept].bits < 8:
        kept = "bf16" if kept.startswith("int") else "fp8"
    weights, kv, compute = (*names, *[kept, names[0]][len(names) - 1 :])
    return Precision(DTYPES[weights], DTYPES[kv], compute)
