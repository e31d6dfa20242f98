"""The flags of a training run, the same for `train` and `launch`: what a `Run` is made from."""

import runpy
from importlib.util import find_spec
from pathlib import Path

from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import MissingExtraError, RooflightError, UsageError, install
from rooflight.plan.file.record import read_plan
from rooflight.train.run import AdamW, Run
from rooflight.units import whole

_PACKAGES = ("jax", "optax", "orbax.checkpoint", "grain")
_MOST_STEPS = 10**9
_NEEDED = ("data", "out", "steps")
_VALIDATES = ("validate_every", "validate_batches")
FLAGS = (*_NEEDED, "from", "save_every", "learning_rate", "seed", "profile_at", *_VALIDATES)

TEMPLATE = '''"""A training run, for `rooflight train` or, on several hosts, `rooflight launch`."""

from rooflight.plan.file.record import read_plan
from rooflight.train.run import AdamW, Run

run = Run(
    plan=read_plan("plan.json"),  # rooflight plan train ... --json > plan.json
    data="tokens",  # rooflight tokens TEXT... --out tokens
    out="run",
    steps=1000,
    optimizer=AdamW(learning_rate=3e-4, warmup_steps=100),
    save_every=100,
)
'''


def add_run(parser: Parser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        help="a file of `plan train --json`, or of Python with a Run as `run`; none: prints one",
    )
    parser.add_argument("--data", metavar="FOLDER", help="that `rooflight tokens` made")
    parser.add_argument(
        "--out", metavar="FOLDER", help="for checkpoints and events; goes on where they end"
    )
    parser.add_argument("--steps", metavar="COUNT", help="of the whole run")
    parser.add_argument(
        "--from", metavar="FOLDER", help="a model of Hugging Face to begin with, not new weights"
    )
    parser.add_argument("--save-every", metavar="STEPS", help="(default 100)")
    parser.add_argument("--learning-rate", metavar="RATE", help="of AdamW (default 3e-4)")
    parser.add_argument(
        "--profile-at", metavar="STEP", help="from which the profiler records 3 steps"
    )
    parser.add_argument(
        "--validate-every", metavar="STEPS", help="tells the loss on data that is held out"
    )
    parser.add_argument(
        "--validate-batches", metavar="COUNT", help="held out, from the data's end (default 8)"
    )
    parser.add_argument("--seed", metavar="NUMBER", help="of weights and shuffle (default 0)")
    parser.add_argument(
        "--cpu", action="store_true", help="devices of this machine's CPU stand for the chips"
    )


def run_of(args: Namespace) -> Run:
    """The run that a file and flags describe."""
    given = {name: getattr(args, name) for name in FLAGS}
    if str(args.run).endswith(".py"):
        if any(value is not None for value in given.values()):
            raise UsageError(
                "a run in Python says all of it itself", hint=f"change {args.run}, leave the flags"
            )
        return _python(Path(args.run))
    missing = [f"--{name}" for name in _NEEDED if given[name] is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} must be given with a plan",
            hint=f"rooflight train {args.run} --data tokens --out run --steps 1000",
        )
    return Run(
        read_plan(args.run),
        args.data,
        args.out,
        whole("--steps", args.steps, most=_MOST_STEPS),
        AdamW(learning_rate=_rate(args.learning_rate)),
        whole("--seed", args.seed or "0", least=0, most=2**31 - 1),
        whole("--save-every", args.save_every or "100", most=_MOST_STEPS),
        profile_at=_steps("--profile-at", args.profile_at, least=0),
        validate_every=_steps("--validate-every", args.validate_every, least=1),
        validate_batches=whole(
            "--validate-batches", args.validate_batches or "8", most=_MOST_STEPS
        ),
        weights=given["from"],
    )


def _steps(flag: str, text: str | None, *, least: int) -> int | None:
    return None if text is None else whole(flag, text, least=least, most=_MOST_STEPS)


def _rate(text: str | None) -> float:
    if text is None:
        return AdamW().learning_rate
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e3:
        raise UsageError(f"--learning-rate must be a rate, got {text!r}", hint="write 3e-4")
    return found


def _python(path: Path) -> Run:
    if not path.is_file():
        raise UsageError(f"{path} is not there", hint="`rooflight train` prints one to begin with")
    try:
        found = runpy.run_path(str(path)).get("run")
    except RooflightError:
        raise
    except Exception as error:  # whatever a file of the user's own raises
        raise UsageError(
            f"{path} raised {type(error).__name__}: {error}", hint=f"`python {path}` shows where"
        ) from None
    if not isinstance(found, Run):
        raise UsageError(
            f"{path} has no Run as `run`", hint="`rooflight train` prints one to begin with"
        )
    return found


def require_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is None]
    if missing:
        raise MissingExtraError(
            f"training needs {', '.join(missing)}, which is not installed", hint=install("train")
        )


def cpu_devices(args: Namespace, run: Run, processes: int) -> int | None:
    """Devices that each process makes of the CPU; None where it has chips of its own."""
    if not args.cpu:
        return None
    chips = run.plan.placed().slice.num_chips
    each, rest = divmod(chips, processes)
    if rest:
        raise UsageError(
            f"{chips} chips of the plan are not the same number for {processes} processes",
            hint=f"give a number of processes that divides {chips}",
        )
    return each
