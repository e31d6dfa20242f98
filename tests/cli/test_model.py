"""The verbs `model` and `mfu`: the answer first, gaps on stderr, impossible rates refused."""

import json
from pathlib import Path

import pytest

from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.presets import load_model, model_names

from .command import run

_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
_RATE = "--on v5p:4x4x4 --tokens-per-s 24k --seq 8192"


@pytest.mark.parametrize("name", model_names())
def test_the_first_line_is_the_parameters_total_and_active(name: str) -> None:
    model = load_model(name)
    graph = model_graph(model)
    first = run(["model", name]).out.splitlines()[0]
    assert first.startswith(f"{model.title}: {count_params(graph):,} parameters, ")
    assert first.endswith(" active a token")


def test_json_has_what_the_library_has() -> None:
    document = json.loads(run(["model", "deepseek-v3", "--seq", "4096", "--json"]).out)
    graph = model_graph(load_model("deepseek-v3"))
    assert document["params"] == count_params(graph)
    assert document["active_params"] == count_params(graph, active=True)
    assert {c["name"] for c in document["components"]} >= {"experts", "shared", "router", "scores"}


@pytest.mark.parametrize(("text", "seq"), [("8k", 8192), ("128K", 131_072), ("8000", 8000)])
def test_a_thousand_positions_of_a_sequence_are_1024(text: str, seq: int) -> None:
    written, plain = (
        run(["model", "llama3-8b", "--seq", s, "--json"]).out for s in (text, f"{seq}")
    )
    assert written == plain and json.loads(written)["verb"] == "model"


def test_all_presets_are_listed() -> None:
    listed = json.loads(run(["model", "--json"]).out)["models"]
    assert [m["name"] for m in listed] == list(model_names())
    text = run(["model"]).out
    assert all(f"\n{name} " in text for name in model_names())


def test_a_config_is_read_by_path_and_its_unknown_keys_are_named_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_CONFIG | {"mystery": 1}))
    outcome = run(["model", str(path)])
    assert outcome.code == 0 and "not understood: mystery" in outcome.err
    assert run(["model", str(tmp_path)]).out == outcome.out
    assert json.loads(run(["model", str(path), "--json"]).out)["not_understood"] == ["mystery"]


def test_a_config_without_a_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in _CONFIG.items() if k != "vocab_size"}))
    outcome = run(["model", str(path)])
    assert (outcome.code, outcome.out) == (2, "") and "vocab_size" in outcome.err


def test_mfu_names_every_convention_and_who_uses_it() -> None:
    out = run(["mfu", "llama3-70b", *_RATE.split()]).out
    for words in ("6ND", "PaLM appendix B, nanoGPT", "torchtitan", "MaxText", "hardware FLOPs"):
        assert words in out
    assert "34.6%" in out


def test_remat_raises_hardware_flops_and_nothing_else() -> None:
    words = ["mfu", "llama3-70b", *_RATE.split(), "--json"]
    plain, full = (
        json.loads(run([*words, *more]).out)["conventions"] for more in ((), ("--remat", "full"))
    )
    changed = [
        a["convention"] for a, b in zip(plain, full, strict=True) if a["fraction"] != b["fraction"]
    ]
    assert changed == ["hardware FLOPs"]


def test_a_rate_above_the_peak_is_a_finding_that_explains_itself() -> None:
    outcome = run(["mfu", "llama3-70b", *_RATE.replace("24k", "412k").split()])
    assert (outcome.code, outcome.out) == (1, "")
    assert "630% of the peak" in outcome.err and "at most 65,392 tokens/s" in outcome.err


@pytest.mark.parametrize(
    "line",
    (
        "model llama3-8b --seq 0",
        "model llama3-8b --dtype bf17",
        "model no-such-model-at-all",
        "mfu llama3-8b --on v5e --tokens-per-s 0 --seq 8192",
        "mfu llama3-8b --on v5e --seq 8192",
        "mfu llama3-8b --on v5e --tokens-per-s 1 --seq 8192 --remat ful",
    ),
)
def test_a_wrong_request_exits_2_with_a_hint(line: str) -> None:
    outcome = run(line.split())
    assert (outcome.code, outcome.out) == (2, "") and "\n\nhint: " in outcome.err
