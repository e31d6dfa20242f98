"""What one element weighs, in bits, with block scales counted exactly.

A dtype is `bits` per element plus, for block formats, `scale_bits` for each started block of
`block` elements. So int4, fp4 and MX formats need no special case in any cost.
"""

from dataclasses import dataclass

from rooflight.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element format.

    >>> DTYPES["bf16"].nbytes(10), DTYPES["int4"].nbytes(3), DTYPES["mxfp4"].nbytes(64)
    (20, 2, 34)
    """

    name: str
    bits: int
    scale_bits: int = 0
    block: int = 1

    @property
    def bits_per_element(self) -> float:
        """Average weight of one element, scales included."""
        return self.bits + self.scale_bits / self.block

    def nbytes(self, elements: int) -> int:
        """Bytes of a packed array of `elements`, its last byte and block rounded up."""
        blocks = -(-elements // self.block) if self.scale_bits else 0
        return -(-(elements * self.bits + blocks * self.scale_bits) // 8)


DTYPES = {
    d.name: d
    for d in (
        Dtype("f64", 64),
        Dtype("f32", 32),
        Dtype("tf32", 32),
        Dtype("bf16", 16),
        Dtype("f16", 16),
        Dtype("fp8", 8),
        Dtype("int8", 8),
        Dtype("fp4", 4),
        Dtype("int4", 4),
        Dtype("int32", 32),
        Dtype("bool", 8),
        Dtype("mxfp8", 8, scale_bits=8, block=32),
        Dtype("mxfp4", 4, scale_bits=8, block=32),
        Dtype("nvfp4", 4, scale_bits=8, block=16),
    )
}


def parse_dtype(text: str) -> Dtype:
    """Finds a dtype by name; unknown names get a did-you-mean.

    >>> parse_dtype("nvfp4").bits_per_element
    4.5
    """
    if text not in DTYPES:
        raise UnknownNameError("dtype", text, DTYPES)
    return DTYPES[text]
