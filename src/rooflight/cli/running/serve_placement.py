"""Where `rooflight serve` runs a model and how large: by flags, or by a file of `plan serve`."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.serving.serving_flags import SERVING_LAYOUT
from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.layout import (
    Precision,
    ServingLayout,
    check_one_engine,
    parse_precision,
    parse_serving_layout,
)
from rooflight.program.from_plan.served_step import check_dtypes, step_of_fleet

_DTYPES = "f32"
_FLAGS = ("on", "layout", "dtypes")


@dataclass(frozen=True, slots=True)
class ServePlacement:
    """A slice if it is known, how a model is split over it, and the sizes that a plan has."""

    on: Slice | None
    layout: ServingLayout
    dtypes: str
    sizes: dict[str, int] = field(default_factory=dict[str, int])  # by flag

    @property
    def precision(self) -> Precision:
        return parse_precision(self.dtypes)


def add_placement(parser: Parser) -> None:
    parser.add_argument("--plan", metavar="FILE", help="of `plan serve --json`: where, how large")
    parser.add_argument("--on", metavar="HARDWARE", help="what it runs on: v5e:2x4")
    parser.add_argument("--layout", help=f"{SERVING_LAYOUT} (default tp: all chips)")
    parser.add_argument(
        "--dtypes",
        metavar="W[/KV[/COMPUTE]]",
        help="of weights, cache and matmuls: bf16, int8/int8/f32 (default bf16, f32 on a CPU)",
    )


def placed(args: Namespace, model: ModelSpec) -> ServePlacement:
    """As the plan has it, or as the flags do: tensor parallel over all chips, unless told."""
    if args.plan is not None:
        return _as_planned(args, model)
    on = None if args.on is None else parse_slice(args.on)
    chips = 1 if on is None else on.num_chips
    layout = parse_serving_layout(args.layout) if args.layout else ServingLayout(tp=chips)
    if layout.num_chips != chips:
        raise UsageError(
            f"--layout {layout} takes {layout.num_chips} chips, --on has {chips}",
            hint="give --on a slice of as many chips, such as --on v5e:2x4 --layout tp=8",
        )
    check_one_engine(layout)
    is_chip = on is not None and "bf16" in on.chip.flops
    found = ServePlacement(on, layout, args.dtypes or ("bf16" if is_chip else _DTYPES))
    check_dtypes(found.precision)
    return found


def _as_planned(args: Namespace, model: ModelSpec) -> ServePlacement:
    given = [f"--{name}" for name in _FLAGS if getattr(args, name) is not None]
    if given:
        raise UsageError(f"--plan already says {', '.join(given)}", hint="leave one of them out")
    try:
        text = Path(args.plan).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {args.plan}: {error}", hint="rooflight plan serve ... --json > plan.json"
        ) from None
    step = step_of_fleet(text)
    if step.model.unnamed != model.unnamed:
        raise UsageError(
            f"the plan {args.plan} is for {step.model.name}, and {args.model} is another model",
            hint=f"rooflight plan serve {args.model}/config.json ... --json > plan.json",
        )
    sizes = {
        "--rows": step.rows,
        "--max-tokens": step.context,
        "--block-tokens": step.block_tokens,
        "--blocks": step.num_blocks,
    }
    tokens = json.loads(text)["fleet"].get("max_step_tokens")
    more = {"--step-tokens": tokens} if isinstance(tokens, int) else {}
    layout = parse_serving_layout(step.layout)
    check_one_engine(layout)
    return ServePlacement(parse_slice(step.slice), layout, step.dtypes, sizes | more)
