"""`plan train --flags`: sets of options by their names, what helps, and what is said of it."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from plans import EXAMPLE, small_plan

from rooflight.cli.main import main
from rooflight.cli.planning import plan as plan_verb
from rooflight.compile.aot.flags import SETS, Sweep, Tried, chosen_options
from rooflight.compile.aot.request import CompileRequest, CompilerOption
from rooflight.compile.aot.run import compile_all
from rooflight.compile.findings.subject import BUILD
from rooflight.compile.findings.verify import options_of
from rooflight.plan.file.record import COMPILER_OPTIONS, Decision, from_json, to_json

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.42.1"}
NONE: Mapping[str, CompilerOption] = {}


def tried(name: str, seconds: float | None) -> Tried:
    return Tried(name, SETS.get(name, NONE), seconds, "compiled" if seconds else "out of memory")


def test_what_saves_a_hundredth_helps_and_the_fastest_is_first() -> None:
    names = list(SETS)[:3]
    found = Sweep(
        (
            tried("default", 1.0),
            tried(names[0], 0.95),
            tried(names[1], 0.991),
            tried(names[2], None),
            tried("both", 0.9),
        ),
        VERSIONS,
    )
    assert [one.name for one in found.helping] == ["both", names[0]]


def test_nothing_helps_a_step_that_does_not_compile() -> None:
    found = Sweep((tried("default", None), tried(next(iter(SETS)), 0.5)), VERSIONS)
    assert found.helping == ()


def test_the_plan_says_what_to_set_and_which_compiler_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = next(iter(SETS))
    found = Sweep((tried("default", 1.0), tried(name, 0.8)), VERSIONS)

    def sweep(*_: object, **__: object) -> Sweep:
        return found

    monkeypatch.setattr(plan_verb, "sweep_flags", sweep)
    plan, words = plan_verb.swept(EXAMPLE)
    choice = plan.choices[-1]
    assert choice.what == "compiler options" and choice.value in words
    assert all(option in choice.value for option in SETS[name])
    assert "libtpu 0.0.42.1" in choice.because and "(-20%)" in words
    assert plan_verb.swept(replace(EXAMPLE))[0].choices[:-1] == EXAMPLE.choices


@pytest.mark.parametrize("name", SETS)
def test_what_a_plan_has_chosen_is_set_as_it_was_tried(
    name: str,
) -> None:
    """The text of a plan file does not say which options are words and which are true or false."""
    choice = Decision(COMPILER_OPTIONS, tried(name, 0.8).text, "it was the fastest")
    plan = from_json(to_json(replace(EXAMPLE, choices=(*EXAMPLE.choices, choice))))
    assert chosen_options(plan) == SETS[name]
    assert {type(value) for value in chosen_options(plan).values()} == {
        type(value) for value in SETS[name].values()
    }
    assert chosen_options(EXAMPLE) == {}


def test_a_plan_is_verified_by_the_options_that_it_has_chosen() -> None:
    text = "xla_tpu_scoped_vmem_limit_kib=65536 some_option=of_a_hand"
    plan = replace(EXAMPLE, choices=(Decision(COMPILER_OPTIONS, text, "by hand"),))
    asked = {"xla_tpu_scoped_vmem_limit_kib": "65536", "some_option": "of_a_hand"}
    assert options_of(plan, "executable") == options_of(plan, "scheduled") == asked
    assert not set(options_of(plan, "partitioned")) & set(asked)


@needs_compiler
def test_a_compiler_that_does_not_know_an_option_goes_without_and_says_so() -> None:
    jax = pytest.importorskip("jax")
    loop = importlib.import_module("rooflight.train.loop")

    def double(x: float) -> float:
        return x + x

    lowered = jax.jit(double).lower(1.0)
    for options in ({}, {"xla_cpu_enable_fast_math": True}):
        step, told = loop.with_options(lowered, options)
        assert step(2.0) == 4.0 and told.get("options", {}) == options and "refused" not in told
    step, told = loop.with_options(lowered, {"xla_tpu_scoped_vmem_limit_kib": "65536"})
    assert step(2.0) == 4.0 and told["options"] == {}
    assert "xla_tpu_scoped_vmem_limit_kib" in told["refused"]


def test_a_gpu_and_a_question_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    train = ["plan", "train", "llama3-8b", "--batch", "64Ki", "--seq", "4096", "--flags"]
    assert main([*train, "--on", "v5e:4x4", "--why-not", "pp=4"]) == 2
    assert "--flags compiles a plan" in capsys.readouterr().err
    assert main([*train, "--on", "h100:8"]) == 2
    assert "no compiler options are known" in capsys.readouterr().err


@needs_compiler
@pytest.mark.full
def test_the_compiler_knows_every_option(tmp_path: Path) -> None:
    plan = small_plan("fsdp=X", "X=16")
    requests = [
        CompileRequest(BUILD, plan.placed(), {"plan": to_json(plan)}, options=options)
        for options in SETS.values()
    ]
    done = compile_all(requests, cache=tmp_path)
    assert {one.outcome for one in done} == {"compiled"}, [one.last_words for one in done]
