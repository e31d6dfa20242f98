"""`rooflight export` and `rooflight import` as commands: what they print and how they end."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.plan.file.record import Alternative, Plan, to_json

from .plans import plan_of

GOOD = plan_of("fsdp=X,sp=Y", "X=16,Y=8@node")
JOB = "model.flavor=70B activation_checkpoint.mode=full"


def write(plan: Plan, tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    return str(path)


def test_a_plan_file_becomes_a_file_of_the_framework(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", write(GOOD, tmp_path), "--to", "torchtitan"]) == 0
    shown = capsys.readouterr()
    assert "tensor_parallel_degree = 8\n" in shown.out and shown.err == ""


def test_a_loss_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(replace(GOOD, layout="fsdp=X,tp=Y"), tmp_path)
    assert main(["export", path, "--to", "torchtitan"]) == 1
    shown = capsys.readouterr()
    assert "# lost: tp=Y: the residual stream is split" in shown.out
    assert shown.err == "1 part of the plan is lost; the head of the file says which\n"
    assert main(["export", path, "--to", "torchtitan", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["losses"][0]["what"] == "tp=Y"
    assert document["settings"]["parallelism.tensor_parallel_degree"] == 8


def test_a_plan_comes_through_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(to_json(GOOD)))
    assert main(["export", "-", "--to", "maxtext"]) == 0
    assert "ici_tensor_sequence_parallelism: 8\n" in capsys.readouterr().out


ODD = replace(
    plan_of("dp=Z,sp=Y", "Y=8@leaf8,Z=16@leaf+node"),
    recipe="18",
    alternatives=tuple(
        Alternative(layout, mesh, schedule, "block", 1.0, 1, "slower")
        for layout, mesh, schedule in (
            ("dp=Z,cp=Y,sp=W", "Y=8@leaf8,W=2@leaf,Z=8@node", "4 microbatches"),
            (
                "dp=Z,sp=Y,pp=P",
                "P=4@leaf4,Z=4@leaf,Y=8@node",
                "interleaved, 4 x 2 stages, 16 microbatches",
            ),
        )
    ),
)


def test_a_plan_that_megatron_cannot_run_names_a_row_that_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(ODD, tmp_path)
    assert main(["export", path, "--to", "megatron"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "becomes dp=Z,sp=Y on mesh Z=16@leaf,Y=8@node" in shown.err
    assert shown.err.endswith("lies so: --row 3\n")
    assert main(["export", path, "--to", "megatron", "--row", "3"]) == 0
    (tmp_path / "run.sh").write_text(capsys.readouterr().out)
    assert main(["import", str(tmp_path / "run.sh"), "--on", "h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["on"], document["layout"]) == ("h100:8x16", "dp=Z,sp=Y,pp=P")
    assert (document["schedule"], document["virtual"]) == ("interleaved", 2)
    assert document["microbatches"] == 16


@pytest.mark.parametrize("row", ("0", "4", "-1"))
def test_a_row_that_is_not_there_is_refused(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", write(ODD, tmp_path), "--to", "megatron", "--row", row]) == 2
    assert f"row {row} must be one of the 3 of the plan" in capsys.readouterr().err


@pytest.mark.parametrize("argv", (["export", "plan.json"], ["export", "none", "--to", "maxtext"]))
def test_a_plan_needs_a_framework_and_a_file(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert "hint: " in capsys.readouterr().err


@pytest.mark.parametrize("framework", ("maxtext", "torchtitan", "megatron"))
def test_without_a_plan_our_words_are_shown(
    framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--to", framework, "--json"]) == 0
    words = {w["ours"]: w["theirs"] for w in json.loads(capsys.readouterr().out)["words"]}
    assert {"fsdp=X", "sp=X", "remat block", "dtype bf16"} <= set(words)


def test_a_configuration_becomes_parts_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*JOB.split(), "parallelism.tensor_parallel_degree=8", "optimizer.lr=1e-4"]
    assert main(["import", *words, "--from", "torchtitan", "--on", "h100:8x16"]) == 0
    shown = capsys.readouterr()
    assert "layout        fsdp=X,sp=Y\n" in shown.out
    assert shown.out.endswith("not read: optimizer.lr\n")
    command = shown.err.removeprefix("next: rooflight ").split()
    assert main([*command, "--json"]) in (0, 1)  # 1: it does not fit, which is an answer
    assert main(["import", *words, "--from", "torchtitan", "--on", "h100:8x16", "--json"]) == 0


def test_what_means_something_else_here_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*JOB.split(), "parallelism.context_parallel_degree=8"]
    assert main(["import", *words, "--from", "torchtitan", "--on", "h100:8x16"]) == 1
    assert "\nnot the same here:\n  cp axis: weights are split" in capsys.readouterr().out


def test_another_model_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["import", "model.flavor=9B", "activation_checkpoint.mode=none", "--from", "torchtitan"]
    assert main([*argv, "--on", "h100:8"]) == 2
    assert "--model" in capsys.readouterr().err
    assert main([*argv, "--on", "h100:8", "--model", "llama3-8b"]) == 0
