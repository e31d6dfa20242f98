"""A model small enough for the devices of a host, and layouts to train it under."""

from rooflight.dtypes import DTYPES
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat

DEVICES = 8  # that the meshes below have
BATCH, SEQ, DTYPE = 8, 16, DTYPES["f32"]  # few tokens: what a layout moves weighs most
MODEL = ModelSpec(
    "small", "A small model", 256, 1024, (Repeat((Block(Attention(8, 8, 32), Mlp(1024)),), 2),)
)
# Data, weights and heads split alone, by every two of them at every split of the devices, by all.
LAYOUTS = (
    ("dp=Z", "Z=8"),
    ("fsdp=X", "X=8"),
    ("tp=Y", "Y=8"),
    ("dp=Z,fsdp=X", "Z=2,X=4"),
    ("dp=Z,fsdp=X", "Z=4,X=2"),
    ("dp=Z,tp=Y", "Z=2,Y=4"),
    ("dp=Z,tp=Y", "Z=4,Y=2"),
    ("fsdp=X,tp=Y", "X=2,Y=4"),
    ("fsdp=X,tp=Y", "X=4,Y=2"),
    ("dp=Z,fsdp=X,tp=Y", "Z=2,X=2,Y=2"),
)
