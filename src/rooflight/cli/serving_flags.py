"""The flags that verbs about serving share: the layout in ways, and dtypes."""

from rooflight.cli.parser import Parser

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
        help="of weights, cache and products: bf16 (default), int8, int8/bf16/bf16",
    )
