"""`rooflight collective`: seconds of one collective over mesh axes, and what binds it."""

import json
import shlex
from dataclasses import asdict

from rooflight.api.costs import collective
from rooflight.cli.flags import add_bytes, add_choice, add_mesh, add_on
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.costs.network import KINDS, CollectiveKind, NetworkTime
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, axes_of, mesh_of
from rooflight.hardware.slice import parse_slice
from rooflight.ui.answers.sharded import collective_answer
from rooflight.ui.text.answer import answer_text
from rooflight.units import format_count

HELP = "seconds of one collective on a slice, and what binds it"

_TRACEABLE = 256  # chips; more take minutes
_SIMULATED = 1024  # chips behind switches, for the time alone
_ROUNDS = 9  # the fastest counts
_WATCHABLE = 64  # chips; the hops of more are too many to look at
_KINDS: dict[str, CollectiveKind] = {kind.replace("_", "-"): kind for kind in KINDS}


def configure(parser: Parser) -> None:
    add_choice(
        parser, "kind", tuple(_KINDS), what="collective", default=None, help=", ".join(_KINDS)
    )
    add_bytes(
        parser,
        help="the array as if these axes did not shard it: what an all-gather leaves on each chip;"
        " for a permute, what each chip sends",
    )
    add_on(parser)
    add_mesh(parser)
    parser.add_argument("--axes", help="mesh axes it runs over: X or X,Y; all if left out")
    parser.add_argument(
        "--in-network-reduction",
        action="store_true",
        help="let the switches add (SHARP); only for an all-reduce",
    )
    parser.add_argument(
        "--trace", metavar="FILE.json", help="simulate it link by link and write every hop"
    )
    parser.add_argument(
        "--simulate", action="store_true", help="simulate it too, for the time alone"
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="run it on devices made of this host, and set the measured time beside (for --on"
        " this-host:N, which `rooflight measure` makes a chip)",
    )
    parser.set_examples(
        "rooflight collective all-gather --bytes 34MB --on v5e:4x4 --mesh X=4,Y=4 --axes X",
        "rooflight collective all-reduce --bytes 1GB --on h100:8x16",
    )


def run(args: Namespace) -> int:
    mesh = mesh_of(args.mesh, parse_slice(args.on))
    axes = axes_of(args.axes, mesh)
    time = collective(
        _KINDS[args.kind],
        args.bytes,
        on=mesh.slice,
        mesh=mesh,
        axes=axes,
        in_network_reduction=args.in_network_reduction,
    )
    simulated_s = _trace(args, mesh, axes) if args.trace else None
    if args.simulate and not args.trace:
        simulated_s = _simulate(args, mesh, axes)
    measured_s = _run_here(args, mesh, axes) if args.run else None
    if args.json:
        document = _document(time, mesh, axes, simulated_s)
        print_json("collective", document | ({"measured_s": measured_s} if args.run else {}))
        return 0
    beside = {"simulated_s": simulated_s, "measured_s": measured_s}
    show(answer_text(collective_answer(time, mesh, axes, **beside)))
    if not args.trace and mesh.slice.chip.torus and 1 < mesh.slice.num_chips <= _WATCHABLE:
        suggest(_trace_command(args, mesh, axes))
    return 0


def _run_here(args: Namespace, mesh: Mesh, axes: list[str]) -> float:
    """Runs the collective over all devices that are made of this host."""
    if mesh.slice.chip.kind != "cpu" or mesh.group(axes).size != mesh.slice.num_chips:
        raise UsageError(
            f"a collective over {','.join(axes)} of {mesh.slice} cannot be run here",
            hint="measure this machine (`rooflight measure --write this-host.toml`), then"
            " ROOFLIGHT_CHIPS=this-host.toml, --on this-host:8, over all axes",
        )
    from rooflight.measure.microbench.child import measure  # only here: planning starts no process

    kind, devices = _KINDS[args.kind], mesh.slice.num_chips
    return measure("ops:collective", devices=devices, kind=kind, nbytes=args.bytes, rounds=_ROUNDS)


def _trace_command(args: Namespace, mesh: Mesh, axes: list[str]) -> str:
    what = f"{args.kind} --bytes {args.bytes} --on {shlex.quote(str(mesh.slice))}"
    return f"rooflight collective {what} --mesh {mesh} --axes {','.join(axes)} --trace hops.json"


def _simulate(args: Namespace, mesh: Mesh, axes: list[str]) -> float:
    """The seconds alone."""
    _check_chips(mesh, _SIMULATED if mesh.slice.chip.switched else _TRACEABLE, "--simulate")
    # Only here: a simulator is slow to load.
    from rooflight.costs.netsim.simulate import simulate_seconds

    return simulate_seconds(_KINDS[args.kind], args.bytes, mesh, axes)


def _check_chips(mesh: Mesh, most: int, flag: str) -> None:
    chips = mesh.slice.num_chips
    if chips > most:
        raise UsageError(
            f"{flag} simulates at most {format_count(most)} chips; {mesh.slice} has"
            f" {format_count(chips)}",
            hint=f"name a smaller slice, or leave {flag} off for the time alone",
        )


def _trace(args: Namespace, mesh: Mesh, axes: list[str]) -> float:
    """Writes the hops of the simulated collective and returns the seconds it took."""
    _check_chips(mesh, _TRACEABLE, "--trace")
    # Only here: a simulator is slow to load.
    from rooflight.costs.netsim.simulate import simulate, trace_json

    result = simulate(_KINDS[args.kind], args.bytes, mesh, axes)
    write_file(args.trace, json.dumps(trace_json(result), allow_nan=False), flag="--trace")
    return result.seconds


def _document(
    time: NetworkTime, mesh: Mesh, axes: list[str], simulated_s: float | None
) -> dict[str, object]:
    return {
        "on": str(mesh.slice),
        "mesh": str(mesh),
        "axes": axes,
        **asdict(time),
        "simulated_s": simulated_s,
    }
