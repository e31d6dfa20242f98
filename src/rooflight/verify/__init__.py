"""The real compiler as judge: compile for a slice that is not there, and read what came out.

The reading half (`verify.hlo`) needs no extra; compiling needs jax and libtpu.
"""

from rooflight.verify.compile import Compilation, compile_all, read_compilation
from rooflight.verify.environment import Ability, abilities, require_compiler
from rooflight.verify.hlo import CompiledStep, find_dumps, read_dump
from rooflight.verify.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.verify.target import Target, make_target

__all__ = [
    "PLAIN_COLLECTIVES",
    "Ability",
    "Compilation",
    "CompileRequest",
    "CompiledStep",
    "Target",
    "abilities",
    "compile_all",
    "find_dumps",
    "make_target",
    "read_compilation",
    "read_dump",
    "require_compiler",
]
