"""HLO text as typed records: collectives, loops, matmuls and memory of a compiled step."""

from rooflight.verify.hlo.collectives import Collective, read_collectives
from rooflight.verify.hlo.dump import Dump, choose_dump, find_dumps, read_dump
from rooflight.verify.hlo.explain import explain
from rooflight.verify.hlo.groups import MeshAxes
from rooflight.verify.hlo.instruction import Computation, Instruction, Module
from rooflight.verify.hlo.live import LiveBytes, read_live
from rooflight.verify.hlo.loops import Execution, Loop, executions
from rooflight.verify.hlo.memory import Buffer, Memory, OutOfMemory, read_memory
from rooflight.verify.hlo.parse import parse_module
from rooflight.verify.hlo.shape import Shape
from rooflight.verify.hlo.step import CompiledStep, read_step
from rooflight.verify.hlo.work import Work, read_work

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
