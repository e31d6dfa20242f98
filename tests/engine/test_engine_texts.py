"""The engine's greedy texts are those of `transformers`, whatever happens to a job on its way."""

from pathlib import Path
from typing import Any  # JSON

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from engine_process import report

from rooflight.errors import UsageError
from rooflight.serve.engine.load import Placement

EVERYDAY = ("qwen3_moe", "gemma2")
REST = ("glm4", "qwen2", "olmo2", "phi3", "granite")
PLAIN, HITS, TIGHT = "plain", "prefix hits", "chunks, preemption and prefix hits"
DRAFTS, DISAGGREGATED = "all of these and drafts", "disaggregated"
OWN_MODEL = ("positions", "experts")  # the other places have a Llama


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With models and texts of `transformers` that several workers read."""
    made = tmp_path_factory.mktemp("engine")
    report("engine_saved_worker.py", str(made), "llama", *EVERYDAY)
    (made / "xla").symlink_to("llama")
    return made


def check(found: Any) -> None:
    assert found[TIGHT]["preemptions"] > 0
    assert found[TIGHT]["cached"] > 0
    check_most(found)


def check_most(found: Any) -> None:
    check_texts(found)
    assert found[PLAIN]["hits"] == 0
    assert found[HITS]["cached"] > 0
    assert found[DRAFTS]["drafted"] > 0
    assert found[DRAFTS]["preemptions"] > 0
    assert found[DRAFTS]["cached"] > 0


def check_texts(found: Any) -> None:
    for situation, texts in found.items():
        assert texts["tokens"] == 7 * 20, situation
        assert texts["different"] == 0, situation
        assert texts["distinct"] > 20, situation
        assert texts["compilations"] == 0, situation
        assert texts["hits"] >= texts["cached"], situation


def test_texts_on_two_devices_are_those_of_transformers(folder: Path) -> None:
    """A tight pool without drafts is that of families below, on two devices, and of the next."""
    situations = (PLAIN, HITS, DRAFTS, DISAGGREGATED)
    check_most(report("engine_texts_worker.py", str(folder / "llama"), "tp2", *situations))


@pytest.mark.full
def test_texts_without_a_compiler_are_those_of_transformers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention and matmuls by XLA alone."""
    monkeypatch.setenv("CXX", "false")
    check(report("engine_texts_worker.py", str(folder / "xla"), "one"))


def test_a_tight_pool_without_a_compiler_changes_no_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    found = report("engine_texts_worker.py", str(folder / "xla"), "one", TIGHT)
    check_texts(found)
    assert found[TIGHT]["preemptions"] > 0
    assert found[TIGHT]["cached"] > 0


@pytest.mark.full
@pytest.mark.parametrize("place", ["one", "tp2"])
def test_texts_are_those_of_transformers(place: str, folder: Path) -> None:
    check(report("engine_texts_worker.py", str(folder / "llama"), place))


@pytest.mark.full
@pytest.mark.parametrize("place", ["tp4", *OWN_MODEL])
def test_texts_on_four_devices_are_those_of_transformers(place: str, folder: Path) -> None:
    model = place if place in OWN_MODEL else "llama"
    check(report("engine_texts_worker.py", str(folder / model), place))


@pytest.mark.parametrize(
    "name", [*EVERYDAY, *(pytest.param(name, marks=pytest.mark.full) for name in REST)]
)
def test_texts_of_a_family_are_those_of_transformers(name: str, folder: Path) -> None:
    names = EVERYDAY if name in EVERYDAY else REST
    texts = report("engine_families_worker.py", str(folder), *names)[name]
    assert texts["tokens"] == 7 * 20
    assert texts["different"] == 0
    assert texts["distinct"] > 10
    assert texts["preemptions"] > 0


@pytest.mark.parametrize("layout", ["dp=2", "tp=2,pp=2", "cp=2"])
def test_layouts_that_split_sequences_layers_or_prompts_are_refused(layout: str) -> None:
    with pytest.raises(UsageError, match="would split layers, sequences or positions"):
        Placement("v5e:1x2", layout)
