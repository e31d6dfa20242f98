# pyright: reportMissingModuleSource=false
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# jaxlib has no types for its parser.
"""The parser against XLA's own, on real dumps; and what it does with damaged ones."""

import importlib.util
import random
import time
from pathlib import Path

import pytest

from rooflight.compile.hlo.explain import explain
from rooflight.compile.hlo.memory import read_memory
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.errors import ParseError

from ..reference_loop import slowness, standard_s

DUMPS = Path(__file__).parent / "dumps"
DAMAGED, DAMAGED_IN_FULL = 200, 2000
LONGEST_S = 5.0  # of a standard CPU; a sound dump of this size takes a tenth of one
BITS = '%(){}[],"=x0 \n'

needs_jaxlib = pytest.mark.skipif(
    importlib.util.find_spec("jaxlib") is None, reason="XLA's own parser is in jaxlib"
)


@needs_jaxlib
def test_instructions_and_operands_are_those_of_the_parser_of_xla(texts: dict[str, str]) -> None:
    from jaxlib import _hlo

    for name, text in texts.items():
        ours = parse_module(text)
        theirs = _hlo.hlo_module_from_text(text)
        for computation in theirs.computations():
            mine = ours.computations[computation.name]
            listed = [(i.name, [o.name for o in i.operands()]) for i in computation.instructions()]
            assert sorted(listed) == sorted(
                (i.name, list(i.operands)) for i in mine.instructions
            ), name


def test_a_collective_of_the_program_has_its_source_line(steps: dict[str, CompiledStep]) -> None:
    lines = Path(__file__).with_name("programs.py").read_text().splitlines()
    calls = {"psum": "lax.psum(", "gather": "lax.all_gather(", "gpu": "lax.all_gather("}
    for name, call in calls.items():
        (found,) = steps[name].collectives
        file, _, line = found.source.partition(":")
        assert file == "programs.py" and call in lines[int(line) - 1]


def test_the_short_form_without_percent_signs_reads_the_same(texts: dict[str, str]) -> None:
    for name in ("psum", "scan", "fsdp-partitioned"):
        long, short = (parse_module(t) for t in (texts[name], texts[name].replace("%", "")))
        for computation in long.computations.values():
            others = short.computations[computation.name].instructions
            assert [i.operands for i in computation.instructions] == [i.operands for i in others]
            assert [i.called for i in computation.instructions] == [i.called for i in others]


def test_attributes_may_go_over_several_lines() -> None:
    text = """HloModule m, is_scheduled=true

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %k = f32[8]{0} custom-call(%p), custom_call_target="tpu_custom_call", metadata={note="a {
}
b"}, backend_config={"x":{
  "y":1}}
}
"""
    kernel = parse_module(text).computations["main"].root
    assert kernel.operands == ("p",) and '"y":1}}' in kernel.attributes


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (("HloModule", "Module"), "opens no computation"),
        (("(%param.1)", "(%param.2)"), "uses %param.2, not defined here"),
        (("to_apply=%region_0.0", "to_apply=%region_0.1"), "calls %region_0.1, not in the text"),
        (("to_apply=%region_0.0", "to_apply=%main.0_spmd"), "calls itself"),
        (("all-reduce(%param.1)", "all-reduce(%param.1"), "a parenthesis stays open"),
        (("ROOT %psum", "%param.1 = s32[] add()\n  ROOT %psum"), "%param.1 is defined twice"),
        (("all-reduce(", "all reduce!"), "has no type and opcode"),
    ],
)
def test_damage_is_named_with_its_line(
    damage: tuple[str, str], words: str, texts: dict[str, str]
) -> None:
    text = texts["psum"]
    assert damage[0] in text
    with pytest.raises(ParseError, match=r"HLO text, line \d+: ") as caught:
        parse_module(text.replace(*damage))
    assert words in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint


def test_a_text_cut_off_anywhere_is_refused(texts: dict[str, str]) -> None:
    text = texts["psum"].rstrip()
    for end in range(0, len(text) - 1, 7):
        with pytest.raises(ParseError):
            parse_module(text[:end])


def _mutated(text: str, chance: random.Random) -> str:
    """One to four small wounds: a character changed, a stretch removed, repeated or moved."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text))
        far = min(len(text), at + chance.choice((1, 3, 40, 4000)))
        piece = text[at:far]
        match chance.randrange(5):
            case 0:
                text = text[:at] + chance.choice(BITS) + text[at + 1 :]
            case 1:
                text = text[:at] + text[far:]
            case 2:
                text = text[:at] + piece + text[at:]
            case 3:
                to = chance.randrange(len(text))
                text = text[:to] + piece + text[to:]
            case _:
                text = text[:at]
        text = text or "x"
    return text


def _survives(texts: dict[str, str], count: int) -> None:
    chance = random.Random(5)
    names = list(texts)
    assignment, ranges = (
        next((DUMPS / "fsdp").glob(f"*-{kind}.txt")).read_text()
        for kind in ("buffer-assignment", "live-range")
    )
    refused, longest_s = 0, LONGEST_S * slowness()
    for at in range(count):
        text = _mutated(texts[names[at % len(names)]], chance)
        started = time.process_time()
        try:
            step = read_step(parse_module(text))
            explain(step, step.module.computations[step.module.entry].root.name)
            read_memory(_mutated(assignment, chance), _mutated(ranges, chance), step.module)
        except ParseError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 300
        assert time.process_time() - started < longest_s
    assert refused > count / 2


def test_damaged_dumps_end_in_one_line_and_in_time(texts: dict[str, str]) -> None:
    _survives(texts, DAMAGED)


@pytest.mark.full
def test_two_thousand_damaged_dumps_end_in_one_line_and_in_time(texts: dict[str, str]) -> None:
    _survives(texts, DAMAGED_IN_FULL)


def test_a_module_of_megabytes_is_read_in_seconds(texts: dict[str, str]) -> None:
    """A module of 40 copies of a step: about 5 MB, 12,000 instructions."""
    text = texts["fsdp-v5p"]
    head, _, rest = text.partition("\n%")
    body, _, entry = ("%" + rest).partition("\nENTRY ")
    copies = [body.replace("%", f"%c{i}.") for i in range(40)]
    many = "\n".join([head, *copies, body, "\nENTRY " + entry])
    steps: list[CompiledStep] = []
    seconds = standard_s(lambda: steps.append(read_step(parse_module(many))), rounds=1)
    count = sum(len(c.instructions) for c in steps[0].module.computations.values())
    assert count > 10_000 and seconds < 20
