"""`python -m benchmarks NAME`: measures, prints or stores the record, holds it against another."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from benchmarks.page import changes_text, record_text, write_pages
from benchmarks.record import RESULTS, Record, Row, changes, make_record, read_record, to_json

BENCHMARKS = {
    "start_up": "the first commands beside a bare interpreter",
    "search": "layouts of a pod beside a fixed piece of numpy work",
    "slider": "a move of the explorer's slider in a browser beside its answer alone",
    "simulator": "ten million requests on a hundred replicas",
    "program": "our training step and MaxText's by one compiler, case by case (hours)",
    "verify": "plans before the compiler, and our part of that time",
    "engine": "the serving engine, a bare loop over generate, XLA alone, transformers",
    "decode_steps": "a decode step by batch, planned on this machine and measured",
    "peers": "other serving engines on the same weights, as far as they install",
    "train_overhead": "the trainer's loop and its saves beside the bare step",
    "train_step": "a train step through the API beside the same maths by hand",
    "generate_step": "a generate step through the API beside the same maths by hand",
}
FACTOR = 1.2


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "docs"], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="few rounds, machine not measured")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument(
        "--write", action="store_true", help=f"store it in {RESULTS.name}/NAME.json"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="compare with an earlier record"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="a record, in place of a new run"
    )
    parser.add_argument(
        "--factor", type=float, default=FACTOR, help="with --against: exit 1 if a case became"
        f" worse by more, beyond its spread (default: {FACTOR})",
    )  # fmt: skip
    parser.add_argument(
        "--cases", metavar="NAME,...", help="of program: only these, the others stay as recorded"
    )
    parser.add_argument(
        "--environments", type=Path, metavar="FOLDER", help="of program: where those of other"
        " programs are kept (default: the user's cache)",
    )  # fmt: skip
    options = parser.parse_args(words)
    if options.name != "program" and (options.cases or options.environments):
        parser.error("--cases and --environments are of the benchmark program")
    if options.quick and options.write:
        parser.error("--write keeps full runs only: leave --quick out")
    if options.name is None:
        print("\n".join(f"{name:15} {what}" for name, what in BENCHMARKS.items()))
        return 0
    if options.name == "docs":
        write_pages()
        return 0
    more = {"chosen": options.cases.split(",")} if options.cases else {}
    more |= {"environments": options.environments} if options.environments else {}
    record = (
        read_record(options.record)
        if options.record
        else measured(options.name, options.quick, more)
    )
    if options.write:
        record = merged(record, options.cases)
        (RESULTS / f"{record.name}.json").write_text(to_json(record), encoding="utf-8")
    if not options.against:
        print(to_json(record) if options.json else record_text(record))
        return 0
    return compared(read_record(options.against), record, options.factor)


def measured(name: str, quick: bool, more: Mapping[str, object]) -> Record:
    found: Iterable[Row | str] = import_module(f"benchmarks.{name}").run(quick=quick, **more)
    return make_record(name, found, quick=quick)


def merged(record: Record, cases: str | None) -> Record:
    """Where only some cases ran: with the other rows as they were recorded."""
    path = RESULTS / f"{record.name}.json"
    if not cases or not path.exists():
        return record
    mine = {row.case for row in record.rows}
    kept = [row for row in read_record(path).rows if row.case not in mine]
    return replace(record, rows=tuple(sorted([*kept, *record.rows], key=lambda row: row.case)))


def compared(before: Record, after: Record, factor: float) -> int:
    found = changes(before, after)
    print(changes_text(before, after, found))
    return 1 if any(c.ratio > factor and c.is_beyond_spread for c in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
