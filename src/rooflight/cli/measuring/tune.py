"""`rooflight tune`: the best few settings of a server by prediction, started and measured."""

import signal
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from rooflight.api.replica import engine_of, read_setup
from rooflight.api.traffic import TrafficLoad, read_slo
from rooflight.cli.flags import add_on
from rooflight.cli.measuring.bench import key_of, require_client
from rooflight.cli.output import picked, print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.progress import progress
from rooflight.cli.serving.serving_flags import add_dtypes, add_engine, add_traffic, load_of
from rooflight.cli.serving.simulate import GOOD_SHARE, quantiles
from rooflight.measure.load.tally import Measured
from rooflight.measure.load.target import Target
from rooflight.measure.load.tune import (
    Trial,
    TrialLoad,
    Tuned,
    filled,
    predicted_trials,
    started,
    tune,
)
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.run import Simulation
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.ui.answers.serving import tuned_answer
from rooflight.ui.text.answer import answer_text
from rooflight.units import parse_seconds, whole

HELP = "settings of a server: the best few by prediction, started, measured, fitted again"
_REQUESTS, _MOST_REQUESTS, _MOST_TRIES = 100, 10**5, 100


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-8b, or the path of a config.json")
    add_on(parser)
    parser.add_argument(
        "--command",
        required=True,
        help="starts the server; {port}, {rows}, {step_tokens}, {tp}, {pp}, {dp}, {ep} are filled"
        " in",
    )
    add_traffic(parser, requests=_REQUESTS)
    parser.add_argument("--rows", default="64,256", help="to try: 64,256 (default)")
    parser.add_argument("--step-tokens", default="2048,8192", help="to try: 2048,8192 (default)")
    parser.add_argument("--layouts", help="to try, joined by spaces: 'tp=4 tp=8'")
    add_dtypes(parser)
    add_engine(parser)
    parser.add_argument("--tries", default="3", help="settings that are started (default 3)")
    parser.add_argument("--start-timeout", default="600s", help="of a server to come up")
    parser.add_argument("--key-env", metavar="NAME", help="variable that holds the API key")
    parser.set_examples(
        "rooflight tune llama3-8b --on h100 --rate 8 --isl 512 --osl 128 --ttft 1s --tpot 30ms"
        " --command 'vllm serve llama3-8b --port {port} --max-num-seqs {rows}"
        " --max-num-batched-tokens {step_tokens}' --tries 0",
    )


def run(args: Namespace) -> int:
    traffic = load_of(args, default=_REQUESTS, most=_MOST_REQUESTS)
    slo = read_slo(args.ttft, args.tpot)
    load = TrialLoad(
        lambda: list(traffic.arrivals()),
        traffic.input_tokens,
        traffic.output_tokens,
        slo,
        engine_of(args.engine),
        traffic.concurrency,
    )
    trials, refused = predicted_trials(_setups(args), load)
    tries = whole("--tries", args.tries, most=_MOST_TRIES, least=0)
    filled(args.command, trials[0].setup, port=0)  # before the first start
    if tries:
        require_client()
    for kind in (signal.SIGTERM, signal.SIGHUP):  # a server in its own session would stay
        signal.signal(kind, lambda number, _: sys.exit(128 + number))
    with TemporaryDirectory() as folder:
        log = Path(folder, "server.log")
        key = key_of(args.key_env)
        measure = partial(_measured, args, key, traffic=traffic, load=load, log=log)
        found = replace(tune(trials, load, measure, tries), refused=refused)
    if args.json:
        print_json("tune", _document(found))
    else:
        show(answer_text(tuned_answer(found, traffic.words, str(slo))))
    best = found.best.measured if found.tried else None
    return 1 if best and best.good_share < GOOD_SHARE else 0


def _setups(args: Namespace) -> list[Setup]:
    """Every combination of what is to be tried."""
    layouts: list[str | None] = [*args.layouts.split()] if args.layouts else [None]
    sizes = product(args.rows.split(","), args.step_tokens.split(","))
    return [
        read_setup(
            args.model, on=args.on, dtypes=args.dtypes, layout=split, rows=rows, step_tokens=tokens
        )
        for split, (rows, tokens) in product(layouts, sizes)
    ]


def _measured(
    args: Namespace,
    key: str | None,
    trial: Trial,
    *,
    traffic: TrafficLoad,
    load: TrialLoad,
    log: Path,
) -> Measured:
    from rooflight.measure.load.drive import drive

    within_s = parse_seconds(args.start_timeout, what="--start-timeout")
    count = traffic.num_requests
    with (
        started(args.command, trial.setup, log, within_s=within_s) as url,
        progress("requests sent", "finished") as watch,
    ):
        target = Target(url, key=key, vocab=trial.setup.model.vocab)
        first, other = Arrival(0.0, load.input_tokens, 2), int(args.seed) + 1
        drive([first], num_requests=1, target=target, seed=other)  # warms it, leaves no prefix
        return drive(
            load.arrivals(),
            num_requests=count,
            target=target,
            slo=load.slo,
            seed=int(args.seed),
            watch=lambda sent, finished: watch(sent, count, finished),
            concurrency=load.concurrency,
        ).measured


def _document(found: Tuned) -> dict[str, object]:
    return {
        **picked(found, "pace step_s refused"),
        "best": found.best.name if found.tried else None,
        "next": found.next_best.name,
        "trials": [
            {
                "layout": str(one.setup.layout),
                **picked(one.setup.sizes, "max_rows max_step_tokens"),
                "predicted": _times(one.predicted.simulation),
                "measured": _times(one.measured),
                "refitted": _times(one.refitted),
                "failure": one.failure or None,
                "faults": one.measured.faults if one.measured else [],
            }
            for one in found.trials
        ],
    }


def _times(found: Simulation | Measured | None) -> dict[str, object] | None:
    if found is None:
        return None
    times = {"ttft": found.ttft, "tpot": found.tpot, "e2e": found.e2e}
    told = {name: quantiles(one) if one else None for name, one in times.items()}
    return {"good_share": found.good_share, **told}
