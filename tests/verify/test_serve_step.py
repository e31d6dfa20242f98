"""Served steps: what they expect by counting, what they hold, and a sound one and mistaken ones."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from plans import small_llama

from rooflight.compile.expected.serve import expected_serving, expected_stored, serving_terms
from rooflight.compile.findings.verify import Verdict, verify
from rooflight.errors import UsageError
from rooflight.models.presets import load_model
from rooflight.program.from_plan.served_step import (
    ServedStep,
    is_fleet,
    read_step,
    step_of_fleet,
    write_step,
)

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
_70B = ServedStep(load_model("llama3-70b"), "v5e:4x4", "tp=16,kv=batch", "bf16", 32, 8192)
SMALL = ServedStep(small_llama(), "v5e:2x4", "tp=8,kv=batch", "bf16", 16, 1024)


def runs(step: ServedStep) -> Counter[str]:
    found = Counter[str]()
    for e in expected_serving(step):
        found[e.kind] += e.count
    return found


def test_a_layer_sums_twice_and_exchanges_where_the_cache_is_split_by_rows() -> None:
    assert runs(_70B) == {"all_reduce": 2 * 80 + 1, "all_to_all": 2 * 80}  # and the table's lookup
    sums = [e for e in expected_serving(_70B) if e.kind == "all_reduce"]
    assert {e.nbytes for e in sums} == {2 * 32 * 8192}


def test_positions_that_are_split_merge_a_max_and_a_sum_in_fp32() -> None:
    step = replace(_70B, layout="tp=16,kv=sequence")
    of_softmax = [e for e in expected_serving(step) if e.op == "attention.softmax"]
    heads_of_a_device = 64 // 8
    assert [(e.kind, e.nbytes, e.count) for e in of_softmax] == [
        ("all_reduce", 4 * 32 * heads_of_a_device, 80)
    ] * 2
    assert runs(step)["reduce_scatter"] == 80


def test_weights_and_caches_never_move() -> None:
    for layout in ("tp=16", "tp=16,kv=batch", "tp=8,ws=2", "tp=8,dp=2"):
        steps = expected_serving(replace(_70B, layout=layout))
        moved = {e.because.split()[1].partition("[")[0] for e in steps}
        assert not {name for name in moved if name[0].isupper()}, layout


def test_what_is_stored_is_the_model_and_its_pages_over_the_chips() -> None:
    stored = expected_stored(_70B)
    pages = stored["cache[0][0]"]
    assert pages == 2 * 80 * 2 * 8 * 128 * 32 * 8192 // 16
    weights = sum(stored.values()) - pages
    planned = {part.name: part.nbytes for part in _70B.memory.parts}
    assert (weights, pages) == (planned["weights"], planned["kv cache"])
    assert {t.because for t in serving_terms(_70B)} == {""}


def test_few_bits_leave_the_table_and_vectors_wide() -> None:
    step = replace(_70B, dtypes="int8")
    wide, few = expected_stored(_70B), expected_stored(step)
    assert few["params.layers[0][0]['mlp.W_in']"] * 2 == wide["params.layers[0][0]['mlp.W_in']"]
    assert few["cache[0][0]"] * 2 == wide["cache[0][0]"]
    table = "params.frame['embedding.W_embed']"
    assert few[table] == wide[table]
    (weights,) = [t for t in serving_terms(step) if t.because]
    vectors = (2 * 80 + 1) * 8192
    assert weights.program_bytes - weights.planned_bytes == few[table] // 2 + vectors


def test_a_pool_smaller_than_all_rows_is_what_is_held() -> None:
    step = replace(_70B, pool_tokens=32 * 8192 // 4)
    assert expected_stored(step)["cache[0][0]"] * 4 == expected_stored(_70B)["cache[0][0]"]
    assert step.memory.total_bytes < _70B.memory.total_bytes


@pytest.mark.parametrize("dtypes", ["fp4", "bf16/int4", "f64"])
def test_what_the_program_has_no_arrays_of_is_refused(dtypes: str) -> None:
    with pytest.raises(UsageError, match=r"the program has no|unknown"):
        replace(_70B, dtypes=dtypes)


def test_a_step_is_read_back_as_it_was_written() -> None:
    assert read_step(write_step(_70B)) == _70B


def _fleet(**changes: object) -> str:
    fleet: dict[str, object] = {
        "on": "v5e:4x4",
        "layout": "tp=16,kv=batch",
        "dtypes": "bf16/bf16/bf16",
        "max_rows": 32,
        "longest_request": 8192,
        "block_tokens": 128,
        "pool_tokens": 65536,
    }
    document = {"question": "serve", "model": "llama3-70b", "fleet": fleet | changes}
    return json.dumps(document, indent=2)


def test_a_fleet_is_judged_by_the_step_of_a_replica() -> None:
    assert is_fleet(_fleet())
    step = step_of_fleet(_fleet())
    assert step == replace(_70B, dtypes="bf16/bf16/bf16", pool_tokens=65536)


@pytest.mark.parametrize("text", ["{", '{"question": "serve"}', _fleet(max_rows="many")])
def test_what_is_no_fleet_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no fleet to compile"):
        step_of_fleet(text)


def test_every_split_of_the_cache_computes_what_one_device_does() -> None:
    pytest.importorskip("jax")
    command = [sys.executable, str(Path(__file__).parent / "serve_worker.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    for layout, one in found["layouts"].items():
        assert one["error"] < 1e-5 * found["size"], layout
    split = {layout: "@Z" in one["cache"] for layout, one in found["layouts"].items()}
    assert {layout for layout, is_split in split.items() if is_split} == {
        "tp=8,kv=batch",
        "tp=8,kv=sequence",
    }


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    return verify(SMALL, until="scheduled", cache=tmp_path_factory.mktemp("cache"))


@needs_compiler
def test_a_sound_step_is_as_planned_in_collectives_and_memory(sound: Verdict) -> None:
    assert sound.findings == ()
    assert sound.matching and sound.matching.matched_share > 0.999
    assert sound.matching.matched_count == sum(runs(SMALL).values())
    assert sound.memory
    assert sound.memory.total_bytes == pytest.approx(SMALL.memory.total_bytes, rel=0.05)


@needs_compiler
def test_fsdp_left_on_is_found_out(tmp_path: Path) -> None:
    """The plan says that weights stay; the program gathers one in every layer."""
    here = str(Path(__file__).parent)
    verdict = verify(SMALL, build="mistakes:weights_gathered", folder=here, cache=tmp_path)
    words = [finding.words for finding in verdict.findings]
    assert any("all-gather over Z" in text for text in words), words
