"""A made-up trace of a TPU's host that has what other readers ask for as well: ids of programs,
transfers, an allocator's events and a compiled program with its buffers.

Two steps of 100 us on one core, named by the host's clock; the device's own clock says the same.
"""

from .tpu import HBM_GBS, PEAK_TFLOPS, US, accesses
from .writer import PlaneWriter, event, message, number, space, text

PROGRAM = 77
MODULE = f"jit_step({PROGRAM})"
COPY = "%copy-start.1 = (f32[64]{0}, f32[64]{0}, u32[]) copy-start(f32[64]{0} %p)"
COPIED = "%copy-done.1 = f32[64]{0} copy-done((f32[64]{0}, f32[64]{0}, u32[]) %copy-start.1)"
# Name, category, FLOPs, bytes of HBM, and where each runs in a step: start and length in us.
OPS = (
    ("%infeed.1 = f32[64] infeed(%t)", "infeed", 0, 0, ((0, 8),)),
    (COPY, "copy-start", 0, 0, ((8, 1),)),
    ("%fusion.1 = f32[64] fusion(%a)", "convolution fusion", 9_000_000_000, 4_000_000, ((9, 30),)),
    ("%fusion.2 = f32[64] fusion(%b)", "loop fusion", 1_000, 16_000_000, ((39, 11), (70, 12))),
    (COPIED, "copy-done", 0, 0, ((50, 15),)),
)
GB = 10**9


def rich_trace(*, late_us: int = 0) -> bytes:
    """`late_us` longer is the second step's last op: another host's trace."""
    core = PlaneWriter("/device:TPU:0")
    core.fact("device_type_string", "TPU v6 Lite")
    core.fact("peak_teraflops_per_second", PEAK_TFLOPS)
    core.fact("peak_hbm_bw_gigabytes_per_second", HBM_GBS)
    kinds = [
        core.kind(
            name,
            name.partition(" ")[0][1:],
            hlo_category=category,
            program_id=PROGRAM,
            symbol_id=at + 1,
            flops=flops,
            bytes_accessed=nbytes,
            memory_access_breakdown=accesses(hbm=nbytes, vmem=0),
        )
        for at, (name, category, flops, nbytes, _) in enumerate(OPS)
    ]
    flight = core.kind(COPY + " ", "copy-start.1", hlo_category="copy-start")
    module = core.kind(MODULE)
    ran: list[bytes] = []
    steps: list[bytes] = []
    modules: list[bytes] = []
    flights: list[bytes] = []
    for step in range(2):
        for kind, (*_, spans) in zip(kinds, OPS, strict=True):
            for start, length in spans:
                longer = late_us if (step, start) == (1, 70) else 0
                span = (step * 100 + start) * US, (length + longer) * US
                clock = (
                    core.stat("device_offset_ps", span[0]),
                    core.stat("device_duration_ps", span[1]),
                )
                ran.append(event(kind, *span, *clock))
        longest = 82 + (late_us if step else 0)
        steps.append(event(core.kind(str(step)), step * 100 * US, longest * US))
        run = core.stat("run_id", step + 1)
        modules.append(event(module, step * 100 * US, longest * US, run))
        flights.append(event(flight, (step * 100 + 8) * US, 57 * US))
    core.line("Steps", steps)
    core.line("XLA Modules", modules)
    core.line("XLA Ops", ran)
    core.line("Async XLA Ops", flights)
    return space(core, _host(), _program())


def _host() -> PlaneWriter:
    """Two allocations and a release: the most is held after the second."""
    plane = PlaneWriter("/host:CPU")
    events: list[bytes] = []
    for at, (allocated, reserved, freed) in enumerate(((2, 0, 0), (5, 3, 0), (1, 3, 1))):
        kind = plane.kind("MemoryDeallocation" if freed else "MemoryAllocation")
        said = {
            "index_on_host": 0,
            "bytes_allocated": allocated * GB,
            "bytes_reserved": reserved * GB,
            "bytes_available": (32 - allocated - reserved) * GB,
            "peak_bytes_in_use": 5 * GB,
            "requested_bytes": GB,
            "allocation_bytes": GB,
            "addr": at,
        }
        stats = [plane.stat(name, value) for name, value in said.items()]
        events.append(event(kind, (1 + at) * US, US, *stats))
    plane.line("main", events)
    return plane


def _program() -> PlaneWriter:
    """A parameter of 100 bytes, a heap of 60: of 40, 20 and 30 bytes the first two meet."""
    shape = number(2, 11) + message(3, bytes([10])) + message(5, message(1, b"\0"))
    instructions = [
        text(1, name) + text(2, code) + message(3, shape) + number(35, at + 1) + operands
        for at, (name, code, operands) in enumerate(
            (
                ("p", "parameter", b""),
                ("a", "negate", number(36, 1)),
                ("b", "negate", number(36, 2)),
                ("c", "negate", number(36, 3)),
            )
        )
    ]
    body = text(1, "main") + b"".join(message(2, one) for one in instructions)
    layout = message(4, message(1, shape) + message(2, shape))
    module = text(1, "jit_step") + text(2, "main") + number(6, 1) + layout
    module += message(3, body + number(5, 1) + number(6, 4)) + number(5, PROGRAM)
    sizes = (100, 40, 20, 30)
    buffers = [
        message(1, number(1, at) + number(2, size) + message(3, text(2, name) + number(4, at + 1)))
        for at, (size, name) in enumerate(zip(sizes, "pabc", strict=True))
    ]
    assigned = [message(9, number(1, at) + number(3, sizes[at])) for at in range(4)]
    allocations = [
        message(3, number(1, 0) + number(2, 100) + number(5, 1) + assigned[0]),
        message(3, number(1, 1) + number(2, 60) + b"".join(assigned[1:])),
    ]
    moves = ((0, 1), (0, 2), (1, 1), (0, 3), (1, 2), (1, 3))
    events = [
        message(1, number(1, kind) + number(2, at) + text(3, "main") + text(4, "pabc"[at]))
        for kind, at in moves
    ]
    heap = message(4, b"".join(events) + number(3, 1))
    proto = message(1, module) + message(3, b"".join([*buffers, *allocations]) + heap)
    plane = PlaneWriter("/host:metadata")
    plane.kind_of(MODULE, "", {"Hlo Proto": proto})
    return plane
