"""`rooflight book`: the book's worked problems, derived again and held against its answers."""

from collections.abc import Sequence
from dataclasses import asdict

from rooflight.book.entry import Chapter, Problem, chapters, entries, find
from rooflight.book.solve import REPRODUCED, STATUSES, Solution, agreement, count, solve
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.ui.answers.book import problem_answers
from rooflight.ui.text.answer import answer_text
from rooflight.ui.text.table import table

HELP = "worked problems of the book, line by line, against its printed answers"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "problem",
        nargs="?",
        help="a problem (3.2), an entry (sharding.q2_1) or a chapter (3); all if left out",
    )
    parser.add_argument(
        "--check", action="store_true", help="derive every number; exit 1 if one is unexplained"
    )
    parser.set_examples("rooflight book 3.2", "rooflight book --check", "rooflight book 2")


def run(args: Namespace) -> int:
    if args.check:
        return _check(args)
    if args.problem is None:
        return _list_problems(args)
    found = find(args.problem)
    if isinstance(found, Chapter):
        return _list_chapter(args, found)
    return _show(args, found)


def _show(args: Namespace, problem: Problem) -> int:
    solutions = [solve(entry) for entry in problem.entries]
    if args.json:
        fields = {"name": problem.name, "title": problem.title, "question": problem.question}
        print_json("book", {"problem": fields, "solutions": [_document(s) for s in solutions]})
    else:
        show("\n\n".join(map(answer_text, problem_answers(problem, solutions))))
    return _exit_code(solutions)


def _document(solution: Solution) -> dict[str, object]:
    entry = solution.entry
    return {
        **asdict(entry),
        "derivation": [asdict(line) for line in solution.derivation.lines],
        "answers": [asdict(a) | {"agreement": agreement(a, entry)} for a in solution.answers],
        "status": solution.status,
    }


def _exit_code(solutions: Sequence[Solution]) -> int:
    return int(any(s.status == "unexplained" for s in solutions))


def _list_problems(args: Namespace) -> int:
    problems = [problem for chapter in chapters() for problem in chapter.problems]
    if args.json:
        rows = [
            {"name": p.name, "title": p.title, "entries": [e.id for e in p.entries]}
            for p in problems
        ]
        print_json("book", {"problems": rows})
        return 0
    rows = [[p.name, p.title, str(len(p.entries))] for p in problems]
    show(table(("problem", "title", "entries"), rows, align="llr"))
    others = len(entries()) - sum(len(p.entries) for p in problems)
    show(f"\nand {others} facts and rules outside problems, listed by chapter:")
    show("  " + ", ".join(f"{c.name} ({c.title})" for c in chapters()))
    suggest("rooflight book 3.2", "rooflight book 2")
    return 0


def _list_chapter(args: Namespace, chapter: Chapter) -> int:
    if args.json:
        rows = [
            {"id": e.id, "problem": e.problem, "kind": e.kind, "title": e.title}
            for e in chapter.entries
        ]
        print_json("book", {"chapter": chapter.name, "title": chapter.title, "entries": rows})
        return 0
    show(f"chapter {chapter.name}: {chapter.title}\n")
    rows = [[e.id, e.problem or "-", e.kind, e.title] for e in chapter.entries]
    show(table(("entry", "problem", "kind", "title"), rows, align="llll"))
    suggest(f"rooflight book {chapter.entries[0].id}")
    return 0


def _check(args: Namespace) -> int:
    chosen = find(args.problem).entries if args.problem else entries()
    solutions = [solve(entry) for entry in chosen]
    if args.json:
        print_json("book", _check_document(solutions))
    else:
        show(_check_text(solutions))
    return _exit_code(solutions)


def _check_document(solutions: Sequence[Solution]) -> dict[str, object]:
    return {
        "entries": len(solutions),
        "reproduced": sum(s.status in REPRODUCED for s in solutions),
        "measured": sum(s.status == "measured" for s in solutions),
        "kinds": count(solutions),
        "status": {s.entry.id: s.status for s in solutions},
    }


def _check_text(solutions: Sequence[Solution]) -> str:
    unexplained = [s for s in solutions if s.status == "unexplained"]
    measured = sum(s.status == "measured" for s in solutions)
    total = len(solutions) - measured
    good = total - len(unexplained)
    rows = [
        [kind, str(sum(by_status.values())), *map(str, by_status.values())]
        for kind, by_status in count(solutions).items()
    ]
    compared = f", {measured} measured ones compared" if measured else ""
    head = f"{good} of {total} reproduced{compared}"
    blocks = [head, table(("kind", "entries", *STATUSES), rows, align="lrrrrr")]
    blocks += [f"{s.entry.id}: {_differences(s)}" for s in unexplained]
    return "\n\n".join(blocks)


def _differences(solution: Solution) -> str:
    wrong = [a for a in solution.answers if not (a.is_reproduced or a.expected.is_measured)]
    return "; ".join(f"{a.name} is {a.value}, expected {a.expected.truth}" for a in wrong)
