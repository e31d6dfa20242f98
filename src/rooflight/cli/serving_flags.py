"""The flags that verbs about serving share: the layout in ways, dtypes, and whose calibration."""

from rooflight.cli.flags import add_choice
from rooflight.cli.parser import Parser
from rooflight.hardware.calibration import ANY, ROOFS
from rooflight.hardware.serving_calibration import shipped_serving

SERVING_LAYOUT = (
    "ways, such as tp=16,kv=batch: tp tensor (kv heads, then query heads), pp stages, dp sequences"
    " in attention, ep experts, ws the model dim of weights, cp positions of a prompt; kv=heads,"
    " batch or sequence splits the cache where tp is more than the kv heads"
)


def add_dtypes(parser: Parser) -> None:
    parser.add_argument(
        "--dtypes",
        default="bf16",
        metavar="W[/KV[/COMPUTE]]",
        help="of weights, cache and matmuls: bf16 (default), int8, int8/bf16/bf16; the cache of"
        " 4-bit floats is fp8 unless said",
    )


def add_engine(parser: Parser) -> None:
    add_choice(
        parser,
        "--engine",
        (ANY, ROOFS, *sorted({engine for _, engine, _ in shipped_serving()} - {ANY})),
        what="engine",
        default=ANY,
        help="whose calibration to plan with (default any; none: the roofline bound)",
    )
