"""`rooflight contribute`: a run of your own as a row of measurements, and what it moves."""

import datetime
import hashlib
import re
from dataclasses import asdict
from pathlib import Path

from rooflight.api.training import training_question
from rooflight.cli.flags import keywords
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.forecast import imported_run, require_words
from rooflight.cli.planning.plan import add_question
from rooflight.errors import UsageError
from rooflight.measure.reconcile.contribute import Contribution, contribution, moved_by, with_row
from rooflight.measure.reconcile.logs import read_log, steady
from rooflight.measure.reconcile.run import step_seconds, training_run
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.search.candidate import run_of
from rooflight.plan.training.time.parts import TrainingRun
from rooflight.train.run import FILE, read_run
from rooflight.ui.answers.gap import contribution_answer
from rooflight.ui.text.answer import answer_text

HELP = "a run of your own, from its log, as a row of measurements; what it moves"


_FORM = """\
rooflight contribute LOG --from SCRIPT --on HARDWARE     by the launch script that ran
rooflight contribute LOG MODEL --on HARDWARE --layout DEGREES --batch TOKENS --seq TOKENS
rooflight contribute RUN                                 the folder of a run of rooflight
... --write FILE.json                                    the row into a file of rows
LOG is of Megatron-LM, NeMo, MaxText, torchtitan or MLPerf.
"""


def configure(parser: Parser) -> None:
    parser.add_argument(
        "log",
        nargs="?",
        help="the log of a run of Megatron-LM, NeMo, MaxText, torchtitan or MLPerf; or the folder"
        " of one of rooflight, which says all that the flags say; none: what there is",
    )
    add_question(parser, is_whole=False)
    parser.add_argument(
        "--from", nargs="+", metavar="FILE", help="the launch script or configuration that ran"
    )
    parser.add_argument(
        "--layout",
        metavar="DEGREES",
        help="else its layout, remat= and microbatches= too: what is left out is chosen, and told",
    )
    parser.add_argument("--name", help="what to call the run (default: the name of its log)")
    parser.add_argument(
        "--write", metavar="FILE.json", help="add the row to a file of rows, or begin one"
    )
    parser.set_examples("rooflight contribute", "rooflight contribute --json")


def run(args: Namespace) -> int:
    if args.log is None:
        if args.json:
            print_json("contribute", {"form": _FORM})
        else:
            print(_FORM, end="")
        return 0
    given = _given(args)
    moved = moved_by(given)
    if args.write:
        write_file(args.write, with_row(Path(args.write), given), flag="--write")
    if args.json:
        document = {
            "row": given.row,
            "source": given.source,
            "forecast": asdict(moved.said),
            "after_s": moved.after_s,
            "constants": {name: {"before": old, "after": new} for name, old, new in moved.moves},
        }
        print_json("contribute", document)
        return 0
    show(answer_text(contribution_answer(given, moved)))
    if args.write:
        suggest(f"rooflight calibrate {args.write} --write FOLDER")
    return 0


def _given(args: Namespace) -> Contribution:
    path = Path(args.log)
    today = str(datetime.date.today())
    name = args.name or path.stem
    if (path / FILE).is_file():
        ran = read_run(path / FILE)
        plan = ran.plan
        quiet, _ = step_seconds(path, ran)
        digest = hashlib.sha256((path / FILE).read_bytes()).hexdigest()
        steps = steady("rooflight", quiet, plan.batch, digest)
        run = training_run(plan, plan.placed())
        return contribution(run, plan.model, plan.framework, steps, name=name, date=today)
    if not path.is_file():
        raise UsageError(f"{path} is no log and no folder of a run", hint="give the log of a run")
    model, engine, run, assumed = _ran(args)
    chips = run.mesh.slice.num_chips
    steps = read_log(path, tokens=run.batch * run.seq, chips=chips)
    return contribution(run, model, engine, steps, name=name, date=today, assumed=assumed)


def _ran(args: Namespace) -> tuple[ModelSpec, str, TrainingRun, list[str]]:
    """What ran, by its own files or by flags; and what the planner chose as nobody said it."""
    if getattr(args, "from"):
        asked, mine = imported_run(args)
    else:
        require_words(args)
        question = training_question(args.model, **keywords(training_question, args))
        asked = question.within(args.layout)
        mine = asked.search(count=1).candidates[0]
    question, micro = asked.question, mine.micro
    run = run_of(question, mine.layout, mine.mesh, micro, mine.remat)
    chosen = {"remat": mine.remat.name, "microbatches": micro.count, "schedule": micro.schedule}
    if mine.num_stages == 1:
        del chosen["schedule"]
    said = re.findall(r"(\w+)=", args.layout) if args.layout else chosen
    assumed = [f"{name}={value}" for name, value in chosen.items() if name not in said]
    return asked.model, question.framework.name, run, assumed
