"""Traces of JAX's profiler, read without TensorBoard and JAX: where the time of a step went."""

from rooflight.profile.classify import COLLECTIVES, OpClass
from rooflight.profile.diff import Change, changes
from rooflight.profile.host_gaps import HostGap, host_gaps
from rooflight.profile.overlap import Overlap, overlaps
from rooflight.profile.perfetto import perfetto
from rooflight.profile.read import EXAMPLE, find_trace, read_trace
from rooflight.profile.roof import under_roof
from rooflight.profile.table import BY, IDLE, By, Row, StepTable, step_names, step_table
from rooflight.profile.trace import Device, Op, Roof, Step, Thread, Timeline, Trace

__all__ = [
    "BY",
    "COLLECTIVES",
    "EXAMPLE",
    "IDLE",
    "By",
    "Change",
    "Device",
    "HostGap",
    "Op",
    "OpClass",
    "Overlap",
    "Roof",
    "Row",
    "Step",
    "StepTable",
    "Thread",
    "Timeline",
    "Trace",
    "changes",
    "find_trace",
    "host_gaps",
    "overlaps",
    "perfetto",
    "read_trace",
    "step_names",
    "step_table",
    "under_roof",
]
