"""The plan file: it round-trips, and what is wrong in it is named by its path."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import ModelError, ParseError, RooflightError, UsageError
from rooflight.models.presets import load_model, model_names
from rooflight.plan.file.record import SCHEMA, Mfu, Plan, from_json, plan_hash, read_plan, to_json

from .json_schema import json_schema
from .plans import plans, sample_plan

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "plan.schema.json"
Document = dict[str, Any]  # JSON as json.loads gives it


@given(plans())
def test_a_plan_comes_back_from_its_file_as_it_was(plan: Plan) -> None:
    text = to_json(plan)
    assert from_json(text) == plan
    assert to_json(from_json(text)) == text
    assert plan_hash(from_json(text)) == plan_hash(plan)


@pytest.mark.parametrize("name", model_names())
def test_every_model_goes_through_the_file_whole(name: str) -> None:
    plan = replace(sample_plan(), model=load_model(name))
    assert from_json(to_json(plan)).model == load_model(name)


def test_a_key_that_came_later_stands_only_where_it_says_something() -> None:
    plan = sample_plan()
    assert "residual_scale" not in json.loads(to_json(plan))["model"]
    scaled = replace(plan, model=replace(plan.model, residual_scale=0.22, logit_scale=0.5))
    assert json.loads(to_json(scaled))["model"]["residual_scale"] == 0.22
    assert from_json(to_json(scaled)) == scaled
    assert plan_hash(scaled) != plan_hash(plan)


def spoil(change: Callable[[Document], object]) -> str:
    document: Document = json.loads(to_json(sample_plan()))
    change(document)
    return json.dumps(document)


def put(*path: str | int, value: object) -> Callable[[Document], object]:
    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


WRONG: dict[str, Callable[[Document], object]] = {
    "schema is 4": put("schema", value=4),
    "schema is True": put("schema", value=True),
    "verb is 'fit'": put("verb", value="fit"),
    'batch is "512", not a whole number': put("batch", value="512"),
    "batch is 512.0, not a whole number": put("batch", value=512.0),
    "seq is true, not a whole number": put("seq", value=True),
    "batch is 0": put("batch", value=0),
    "512 sequences are not 3 equal microbatches": put("microbatches", value=3),
    "4 stages with the schedule None": put("stages", value=4),
    "zero is 3, not one of 0, 1, 2": put("zero", value=3),
    "zero is true, not one of 0, 1, 2": put("zero", value=True),
    'overlap is "none", not one of': put("overlap", value="none"),
    "time.roofline_s is null, not a number": put("time", "roofline_s", value=None),
    "time: the bounds of a step": put("time", "roofline_s", value=99.0),
    'time.collectives_s.X is "a", not a number': put("time", "collectives_s", "X", value="a"),
    "memory.parts is {}, not a list": put("memory", "parts", value={}),
    "memory.parts[0].nbytes is 1.5": put("memory", "parts", 0, "nbytes", value=1.5),
    "memory.parts[0] is 7, not an object": put("memory", "parts", 0, value=7),
    "memory.part is not a key": put("memory", "part", value=0),
    "mfu: a utilisation of 1.2": put("mfu", "value", value=1.2),
    "model.layers[0].blocks[0].attention: 64 query heads do not share 7": put(
        *("model", "layers", 0, "blocks", 0, "attention", "num_kv_heads"), value=7
    ),
    "model.layers[0].blocks[0].mlp must have the keys of Mlp or Moe": put(
        *("model", "layers", 0, "blocks", 0, "mlp"), value={"width": 4}
    ),
    "remat is missing": lambda document: document.pop("remat"),
    "model.d_model is missing": lambda document: document["model"].pop("d_model"),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_named_by_its_path(message: str) -> None:
    with pytest.raises(ParseError) as caught:
        from_json(spoil(WRONG[message]))
    assert message in str(caught.value) and caught.value.hint


def test_an_unknown_key_gets_a_did_you_mean() -> None:
    with pytest.raises(ParseError) as caught:
        from_json(spoil(put("layuot", value="fsdp=X")))
    assert "layuot is not a key" in str(caught.value) and "`layout`" in caught.value.hint


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    text = to_json(sample_plan()).replace('"roofline_s": 10.0', f'"roofline_s": {number}')
    with pytest.raises(ParseError):
        from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 10**5, '{"a": 1, "a": 1}'])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        from_json(text)


def test_whole_numbers_of_other_writers_are_read_as_floats() -> None:
    plan = from_json(spoil(put("time", "roofline_s", value=10)))
    assert type(plan.time.roofline_s) is float


def test_not_a_number_is_never_written() -> None:
    plan = sample_plan()
    with pytest.raises(ModelError, match="tokens_per_s is nan"):
        to_json(replace(plan, tokens_per_s=float("nan")))
    with pytest.raises(ModelError, match=r"alternatives\[0\].step_s is inf"):
        lost = replace(plan.alternatives[0], step_s=float("inf"))
        to_json(replace(plan, alternatives=(lost,)))


@settings(max_examples=300)
@given(st.data())
def test_a_spoilt_file_is_read_or_refused_with_a_hint(data: st.DataObject) -> None:
    text = to_json(sample_plan())
    at = data.draw(st.integers(0, len(text)))
    spoilt = text[:at] + data.draw(st.sampled_from(("", "{", "]", "null", "9", ",", '"', "-", "é")))
    try:
        from_json(spoilt + text[at + data.draw(st.integers(0, 9)) :])
    except RooflightError as error:
        assert error.hint and error.exit_code == 2


def test_the_hash_is_of_the_program_and_not_of_its_price() -> None:
    plan = sample_plan()
    same = replace(
        plan,
        mfu=Mfu(0.1, "other"),
        alternatives=(),
        version="9",
        model=replace(plan.model, name="renamed", source=None),
    )
    assert plan_hash(same) == plan_hash(plan)
    others = {
        plan_hash(replace(plan, layout="fsdp=X,tp=Y")),
        plan_hash(replace(plan, mesh="X=64@y+z,Y=8@x")),
        plan_hash(replace(plan, microbatches=2)),
        plan_hash(replace(plan, remat="dots")),
        plan_hash(replace(plan, model=load_model("llama3-8b"))),
        plan_hash(replace(plan, dtype="fp8")),
    }
    assert len(others | {plan_hash(plan)}) == 7


def test_the_mesh_of_a_plan_reads_back() -> None:
    assert str(sample_plan().placed()) == sample_plan().mesh


def test_a_file_is_read_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(to_json(sample_plan()))
    assert read_plan(str(tmp_path / "plan.json")) == sample_plan()
    for wrong in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot read"):
            read_plan(str(wrong))


def test_the_published_schema_is_that_of_the_records() -> None:
    """ROOFLIGHT_UPDATE_GOLDEN=1 writes it anew."""
    text = json.dumps(json_schema(Plan, verb="plan", schema=SCHEMA), indent=2) + "\n"
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        SCHEMA_FILE.write_text(text)
    assert SCHEMA_FILE.read_text() == text


def accepts(schema: Document, value: Any, defs: Document) -> bool:
    """As much of JSON Schema as the file uses, read without our codec."""
    if "$ref" in schema:
        return accepts(defs[schema["$ref"].removeprefix("#/$defs/")], value, defs)
    if "anyOf" in schema:
        return any(accepts(part, value, defs) for part in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        words = schema.get("enum", [schema.get("const")])
        return any(value == word and type(value) is type(word) for word in words)
    kind = schema["type"]
    if kind == "object":
        return isinstance(value, dict) and accepts_members(schema, value, defs)  # pyright: ignore[reportUnknownArgumentType]
    if kind == "array":
        return isinstance(value, list) and all(accepts(schema["items"], v, defs) for v in value)  # pyright: ignore[reportUnknownVariableType]
    types = {"string": str, "boolean": bool, "integer": int, "null": type(None)}
    return type(value) in (int, float) if kind == "number" else type(value) is types[kind]


def accepts_members(schema: Document, value: Document, defs: Document) -> bool:
    known, other = schema.get("properties", {}), schema["additionalProperties"]
    if not set(schema.get("required", ())) <= set(value) or (not other and set(value) - set(known)):
        return False
    return all(accepts(known.get(key, other), item, defs) for key, item in value.items())


@given(plans())
def test_every_plan_file_is_as_the_schema_says(plan: Plan) -> None:
    schema: Document = json.loads(SCHEMA_FILE.read_text())
    document = json.loads(to_json(plan))
    assert accepts(schema, document, schema["$defs"])
    for key in document:
        assert not accepts(schema, {k: v for k, v in document.items() if k != key}, schema["$defs"])
    assert not accepts(schema, document | {"batch": "4"}, schema["$defs"])


def test_the_documentation_lists_every_key() -> None:
    page = SCHEMA_FILE.with_name("plan-file.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {word for row in rows for word in row.replace("`", "").replace(",", " ").split()}
    assert listed == set(json.loads(to_json(sample_plan())))


def test_a_file_of_the_first_schema_is_read() -> None:
    """It had one time, the roofline, under another name, and no framework but ours."""
    document = json.loads(to_json(sample_plan()))
    document["schema"] = 1
    del document["framework"], document["time"]["forecast"]
    document["time"]["expected_s"] = document["time"].pop("roofline_s")
    document["time"]["products_s"] = document["time"].pop("matmuls_s")
    for lost in document["alternatives"]:
        lost["expected_s"] = lost.pop("step_s")
    assert from_json(json.dumps(document)) == sample_plan()
    del document["time"]["expected_s"]
    with pytest.raises(ParseError, match="not a file of its schema"):
        from_json(json.dumps(document))


def test_a_file_of_the_second_schema_is_read_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    """`plan_schema_2.json` was written by the version that said products."""
    old = Path(__file__).with_name("plan_schema_2.json")
    assert read_plan(str(old)) == sample_plan()
    assert capsys.readouterr().err == "note: read schema 2 of a plan file as schema 3\n"
    assert from_json(to_json(sample_plan())) == sample_plan() and not capsys.readouterr().err
