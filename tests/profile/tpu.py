"""A made-up trace of a TPU: two layers in a loop, an all-gather in flight, a host that dawdles.

All times are in whole microseconds, so that tests can say what must come out.
"""

from dataclasses import dataclass

from .writer import PlaneWriter, event, message, number, space

US = 1_000_000  # picoseconds
STEP = 100  # microseconds from the start of one step to that of the next
PEAK_TFLOPS, HBM_GBS = 918.0, 1640.0
GATHER = "%all-gather-start.1 = (bf16[8]{0}, bf16[16]{0}) all-gather-start(bf16[8]{0} %p)"
DONE = "%all-gather-done.1 = bf16[16]{0} all-gather-done((bf16[8]{0}) %all-gather-start.1)"


@dataclass(frozen=True)
class Ran:
    """One op of a step: metadata, start and duration in microseconds from the step's start."""

    kind: int
    start: int
    duration: int


def accesses(*, hbm: int, vmem: int) -> bytes:
    """A breakdown: operation 1, memory space 2 (1 is HBM, 3 is VMEM), bytes 3."""
    entries = [
        number(1, 1) + number(2, where) + number(3, size) for where, size in ((1, hbm), (3, vmem))
    ]
    return b"".join(message(1, entry) for entry in entries)


def ops(plane: PlaneWriter) -> list[Ran]:
    """A step of 90 us: 30 us of matmuls, 20 of vectors, 10 exposed, the loop's own 10, a copy."""
    matmul = plane.kind(
        "%fusion.1 = bf16[512,512]{1,0} fusion(%a, %b), kind=kOutput",
        "fusion.1",
        hlo_category="convolution fusion",
        tf_op="jit(step)/jvp(mlp.in)/dot_general:",
        source="model.py:10",
        flops=9_180_000_000,
        bytes_accessed=8_200_000,
        memory_access_breakdown=accesses(hbm=4_100_000, vmem=4_100_000),
    )
    vector = plane.kind(
        "%fusion.2 = bf16[512]{0} fusion(%c), kind=kLoop",
        "fusion.2",
        hlo_category="loop fusion",
        tf_op="jit(step)/transpose(jvp(mlp.act))/mul:",
        source="model.py:12",
        flops=1_000,
        bytes_accessed=8_200_000,
    )
    loop = plane.kind("%while.1 = while(%t)", "while.1", hlo_category="while", flops=10**13)
    start = plane.kind(GATHER, "all-gather-start.1", hlo_category="all-gather-start")
    done = plane.kind(DONE, "all-gather-done.1", hlo_category="all-gather-done")
    copy = plane.kind(
        "%copy.1 = bf16[8]{0} copy(%x)", "copy.1", hlo_category="copy", flops=0, bytes_accessed=100
    )
    return [
        *(Ran(start, 0, 1), Ran(loop, 1, 70), Ran(matmul, 1, 15), Ran(vector, 16, 10)),
        *(Ran(matmul, 31, 15), Ran(vector, 46, 10), Ran(done, 56, 10), Ran(copy, 75, 15)),
    ]


def device(name: str, *, steps: int, with_async: bool = True) -> PlaneWriter:
    """A device plane; its steps are named 7, 8, 9 ..."""
    plane = PlaneWriter(name)
    plane.fact("device_type_string", "TPU v6 Lite")
    plane.fact("peak_teraflops_per_second", PEAK_TFLOPS)
    plane.fact("peak_hbm_bw_gigabytes_per_second", HBM_GBS)
    ran = ops(plane)
    marks: list[bytes] = []
    events: list[bytes] = []
    flights: list[bytes] = []
    flight = plane.kind(GATHER + " ", "async-all-gather", hlo_category="all-gather-start")
    for step in range(steps):
        at = step * STEP
        marks.append(event(plane.kind(str(7 + step)), at * US, 90 * US))
        for one in ran:
            said = plane.stat("device_duration_ps", one.duration * US)
            events.append(event(one.kind, (at + one.start) * US, one.duration * US, said))
        flights.append(event(flight, at * US, 66 * US, plane.stat("hlo_op", "all-gather-done.1")))
    plane.line("Steps", marks)
    plane.line("XLA Ops", events)
    if with_async:
        plane.line("Async XLA Ops", flights)
    return plane


def host(*, steps: int, reads: str = "$data.py:3 next_batch") -> PlaneWriter:
    """A python thread that reads data between steps."""
    plane = PlaneWriter("/host:CPU")
    outer = plane.kind("train")
    inner = plane.kind(reads)
    events: list[bytes] = []
    for step in range(steps):
        at = step * STEP
        said = plane.stat("step_num", 7 + step)
        events.append(event(outer, at * US, 100 * US, said))
        events.append(event(inner, (at + 90) * US, 9 * US))
    plane.line("python", events)
    return plane


def tpu_trace(
    *,
    devices: int = 2,
    steps: int = 3,
    with_async: bool = True,
    reads: str = "$data.py:3 next_batch",
) -> bytes:
    planes = [
        device(f"/device:TPU:{i}", steps=steps, with_async=with_async) for i in range(devices)
    ]
    return space(*planes, host(steps=steps, reads=reads))
