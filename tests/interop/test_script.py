"""Shell scripts are read and never run; what cannot be followed is named, or refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import ParseError, RooflightError, UsageError
from rooflight.interop.script.expand import UNKNOWN
from rooflight.interop.script.run import read_script
from rooflight.interop.settings import read_nested_yaml

# A script, and the words of the last program it starts.
STARTED = {
    "run $A": "run",
    "A=1; run $A ${A} '$A' \"$A b\"": "run|1|1|$A|1 b",
    "A='x y'; run $A \"$A\"": "run|x|y|x y",
    'A=(x \'y z\'); run ${A[@]} "${A[@]}" "${A[*]}" ${A[1]} $A': ("run|x|y|z|x|y z|x y z|y|z|x"),
    'A=(); A+=(b) # c\nA+=(\n  # no\n  d\n)\nrun "${A[@]}"': "run|b|d",
    "A=(); run \"${A[@]}\" ''": "run|",
    "A=x; A+=y; run $A": "run|xy",
    "export A=1 B=2; export C; run $A$B": "run|12",
    "declare -a A=(1 2); run ${A[@]}": "run|1|2",
    "run ${A:-1} ${A-2} ${B:=3} $B ${B:+4} ${C:+5}": "run|1|2|3|3|4",
    "run ${A:-${B:-x}}": "run|x",
    "A=2; run $((A * 3 + 8 / 4 % 3)) $(($A-(1+1)))": "run|8|0",
    "run $((1 +)) $((2 ** 3)) $((1/0)) $((99999999999999999*99))": "run|?|?|?|?",
    "run $(date) `date` ${A%x} ${#A} $$": "run|?|?|?|?|?",
    "run a \\\n  b # c\n": "run|a|b",
    "run a>log 2>&1 <in b": "run|a|b",
    "run a | tee log": "tee|log",
    "cat <<EOF\nrun no\nEOF\nrun yes": "run|yes",
    "cat <<-'END' && A=1\n\tA=2\n\tEND\nrun $A": "run|1",
    "if [ $A = 1 ]; then run yes; else run no; fi": "run|no",
    "A=1; if [[ $A == 1 && -n $A ]]; then run yes; fi": "run|yes",
    "A=3; if (( A > 2 )); then run yes; fi": "run|yes",
    "A=b; if [ $A = a ]; then run a; elif [ $A = b ]; then run b; else run c; fi": "run|b",
    "if [ ! -z '' ]; then run a; fi; run b": "run|b",
    "[ 1 -lt 2 ] && A=1; [ 1 -gt 2 ] && A=2; run $A": "run|1",
    "[ 1 = 2 ] || A=1; [ 1 = 1 ] || A=2; run $A": "run|1",
    "! [ 1 = 2 ] && run yes": "run|yes",
    "cd x && { A=1; run $A; }": "run|1",
    "A=1; f() { A=2; }; run $A": "run|1",
    "A=1; while read x; do A=2; done; run $A": "run|1",
    "A=1; case $1 in a) A=2 ;; *) A=3 ;; esac; run $A": "run|1",
    "bash -c 'A=1; run $A'": "run|1",
    "A='run x'; eval \"$A\" y": "run|x|y",
    'srun -l bash -x -c "run x"': "run|x",
    "A=1; unset A; run $A": "run",
    "run a; exit; run b": "run|a",
    "A=1; A=2 run $A; run $A": "run|1",
}


@pytest.mark.parametrize("text", STARTED)
def test_what_a_script_starts_is_what_a_shell_would_start(text: str) -> None:
    last = read_script(text).programs[-1]
    assert "|".join(last).replace(UNKNOWN, "?") == STARTED[text]


def test_a_variable_that_is_given_stays() -> None:
    found = read_script("TP=${TP:-4}; TP=8; run $TP $NODES", {"TP": "2", "NODES": "16"})
    assert found.programs == (("run", "2", "16"),)


SKIPPED = {
    "for i in 1 2; do A=$i; done": "line 1: a for is not followed",
    "\nf() {\n A=1\n}": "line 2: a function is not followed",
    "case $1 in\n a) A=1;;\nesac": "line 1: a case is not followed",
    ". ./env.sh": "line 1: . ./env.sh is not read",
    "if [ -f x ]; then A=1; fi": (
        "line 1: a condition is not known, so what it guards is left out"
    ),
}


@pytest.mark.parametrize("text", SKIPPED)
def test_what_is_not_followed_is_named(text: str) -> None:
    assert read_script(text).skipped == (SKIPPED[text],)


def test_blocks_that_set_nothing_are_not_worth_a_word() -> None:
    text = "for i in 1 2; do echo $i; done; if [ ! -d x ]; then mkdir x; exit 1; fi; run"
    assert read_script(text).skipped == ()


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    commands = (f"touch {mark}", f"$(touch {mark})", f"`touch {mark}`", f"A=$(touch {mark})")
    more = (f"eval touch {mark}", f"bash -c 'touch {mark}'", f": ${{A:=$(touch {mark})}}")
    read_script("\n".join((*commands, *more, f"[ $(touch {mark}) ]", f"cat <(touch {mark})")))
    assert not mark.exists()


HOSTILE = {
    "doubled": "A=xxxxxxxx\n" + "A=$A$A\n" * 40,
    "doubled arrays": "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
    "nested substitutions": "$(" * 5000,
    "nested quotes": '"$(' * 5000,
    "nested braces": "${A:-" * 5000,
    "nested brackets": "A=" + "(" * 5000,
    "nested groups": "{ " * 5000,
    "nested ifs": "if true; then " * 5000,
    "scripts in scripts": 'A=\'eval "$A"\'; eval "$A"',
    "copies": "A=" + "x" * 60_000 + "\n" + "B=$A\n" * 20_000,
    "open quote": "run 'a",
    "open array": "A=(a",
    "open if": "if true; then run",
    "open loop": "while true; do run",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_is_refused_at_once(name: str) -> None:
    with pytest.raises(ParseError) as caught:
        read_script(HOSTILE[name])
    assert caught.value.hint


@settings(max_examples=300)
@given(st.text(alphabet="aA=(){}[]$\"'`\\ \n;&|<>#!-1+*@:", max_size=60))
def test_any_script_is_read_or_refused(text: str) -> None:
    try:
        read_script(text)
    except RooflightError as error:
        assert error.hint


_words = ("if", "then", "fi", "else", "do", "done", "case", "esac", "in", "{", "}", "for", "run")


@given(st.lists(st.sampled_from((*_words, "A=1", "$A", ";", "\n", "&&", "||", "(", ")", "[ 1 ]"))))
def test_any_order_of_words_is_read_or_refused(words: list[str]) -> None:
    try:
        read_script(" ".join(words))
    except UsageError as error:
        assert error.hint


NESTED = {
    "a: 1\nb:\n  c: x # why\n  d:\n    e: [1,\n 2]\n": {"a": 1, "b.c": "x", "b.d.e": "[1, 2]"},
    "A:\n  --flag: true\n  --long-one:\n    true\nB:\n- x\n- y": {
        "A.--flag": True,
        "A.--long-one": True,
        "B": "[x, y]",
    },
    "run: |\n  a: {\n  b\nc: 2": {"run": None, "c": 2},
    "'a b': 1\n\"c\": 'd'": {"a b": 1, "c": "d"},
    "list:\n  - name: a\n    value: 1\n  - name: b\n    value: 2": {"list": "[name: a, name: b]"},
}


@pytest.mark.parametrize("text", NESTED)
def test_mappings_inside_mappings_join_their_keys(text: str) -> None:
    assert read_nested_yaml(text) == NESTED[text]


@pytest.mark.parametrize("text", ["a: 1\na: 2", "- a", "just words", "a: &b 1", "a: [1", "a: *b"])
def test_yaml_that_is_more_than_that_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        read_nested_yaml(text)
    assert caught.value.hint


@settings(max_examples=300)
@given(st.text(alphabet="ab:=[]{}#'\" \n-1.e_&|>", max_size=60))
def test_any_nested_text_is_read_or_refused(text: str) -> None:
    try:
        read_nested_yaml(text)
    except RooflightError as error:
        assert error.hint
