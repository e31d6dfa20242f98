"""The real compiler as judge: compile for a slice that is not there, and read what came out.

The reading half (`compile.hlo`) needs no extra; compiling needs jax and libtpu.
"""

from rooflight.compile.aot.environment import Ability, abilities, require_compiler
from rooflight.compile.aot.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.compile.aot.run import Compilation, compile_all, read_compilation
from rooflight.compile.aot.target import Target, make_target
from rooflight.compile.hlo.dump import find_dumps, read_dump
from rooflight.compile.hlo.step import CompiledStep

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
