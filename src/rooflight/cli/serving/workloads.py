"""`rooflight plan serve --workloads`: several models and priorities on one pool of chips."""

from rooflight.api.workloads import plan_workloads
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY
from rooflight.plan.serving.fleet.pool import PoolPlan
from rooflight.ui.answers.pool import pool_answer
from rooflight.ui.text.answer import answer_text

_OF_THE_FILE = (
    *("model", "rate", "isl", "osl", "ttft", "tpot", "layout", "rows", "step_tokens", "policy"),
    *("requests", "draft_tokens", "acceptance", "draft_model", "expert_skew", "redundant_experts"),
    *(
        "dtypes",
        "adapters",
        "adapter_rank",
        "adapters_resident",
        "why_not",
        "sensitivity",
        "hourly",
    ),
)
_DEFAULTS = {"percentile": "95", "confidence": "50", "hit_rate": "0"} | {
    "burstiness": "1",
    "seed": "0",
    "engine": ANY,
}


def add_workloads(parser: Parser) -> None:
    parser.add_argument(
        "--workloads",
        metavar="FILE",
        help="in place of a model and its traffic: a TOML file with a [[workload]] for each model,"
        " or each priority of a model (model, rate, isl, osl, ttft, tpot, priority, dtypes, ...)",
    )


def run_workloads(args: Namespace, prices: dict[str, str]) -> int:
    """The pool for all of them; exit code 1 where there is none."""
    given = [name for name in _OF_THE_FILE if getattr(args, name, None)]
    given += [name for name, usual in _DEFAULTS.items() if getattr(args, name) != usual]
    if given:
        raise UsageError(
            f"--workloads and {given[0].replace('_', '-')} are both given",
            hint="write it into the file, beside its model",
        )
    with progress("ways to serve", "simulations") as watch:
        pool = plan_workloads(
            args.workloads, on=args.on, prices=prices, spare=args.spare, watch=watch
        )
    if args.json:
        print_json("plan", document(pool))
    else:
        show(answer_text(pool_answer(pool)))
    return 0 if pool.fleets else 1


def document(pool: PoolPlan) -> dict[str, object]:
    """The tables of the answer, and what is shared."""
    tables = {
        table.key: [
            dict(zip((c.key for c in table.columns), row, strict=True)) for row in table.rows
        ]
        for table in pool_answer(pool).tables
    }
    return {
        "question": "serve",
        "chips": pool.num_chips,
        "dollars_per_hour": pool.dollars_per_hour,
        "dollars_per_hour_apart": pool.apart_dollars,
        "spares": [{"on": str(fleet.way.setup.on), "spare": fleet.spare} for fleet in pool.spares],
        **tables,
    }
