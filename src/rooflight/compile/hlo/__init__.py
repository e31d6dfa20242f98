"""HLO text as typed records: collectives, loops, matmuls and memory of a compiled step."""

from rooflight.compile.hlo.collectives import Collective, read_collectives
from rooflight.compile.hlo.dump import Dump, choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.explain import explain
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.instruction import Computation, Instruction, Module
from rooflight.compile.hlo.live import LiveBytes, read_live
from rooflight.compile.hlo.loops import Execution, Loop, executions
from rooflight.compile.hlo.memory import Buffer, Memory, OutOfMemory, read_memory
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.shape import Shape
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.compile.hlo.work import Work, read_work

__all__ = [
    "Buffer",
    "Collective",
    "CompiledStep",
    "Computation",
    "Dump",
    "Execution",
    "Instruction",
    "LiveBytes",
    "Loop",
    "Memory",
    "MeshAxes",
    "Module",
    "OutOfMemory",
    "Shape",
    "Work",
    "choose_dump",
    "executions",
    "explain",
    "find_dumps",
    "parse_module",
    "read_collectives",
    "read_dump",
    "read_live",
    "read_memory",
    "read_step",
    "read_work",
]
