"""Traces of JAX's profiler, read without TensorBoard and JAX: where the time of a step went."""

from rooflight.measure.trace.classify import COLLECTIVES, OpClass
from rooflight.measure.trace.diff import Change, changes
from rooflight.measure.trace.host_gaps import HostGap, host_gaps
from rooflight.measure.trace.overlap import Overlap, overlaps
from rooflight.measure.trace.perfetto import perfetto
from rooflight.measure.trace.read import EXAMPLE, find_trace, read_trace
from rooflight.measure.trace.record import Device, Op, Roof, Step, Thread, Timeline, Trace
from rooflight.measure.trace.roof import under_roof
from rooflight.measure.trace.table import BY, IDLE, By, Row, StepTable, step_names, step_table

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
