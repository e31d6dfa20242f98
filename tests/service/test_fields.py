"""The request models: what they read is what their schema says, no more and no less."""

import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.serve.engine.request import Sampling
from rooflight.serve.http.asked import read_chat, read_completion
from rooflight.serve.http.protocol import HARMLESS, make_protocol
from rooflight.serve.http.routes import openapi
from rooflight.serve.server.body import parse_json
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.fields import Fields
from rooflight.serve.server.problem import ApiError

BOUNDS = Bounds(vocab=8, max_model_tokens=6)
PROTOCOL = make_protocol(BOUNDS, model="tiny")
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.floats(-3, 3),
    st.sampled_from(("", "a", "none", "text", "tiny", "user", "json_object", "x" * 200)),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(("type", "text", "role", "content", "json_schema", "schema")), inner
        ),
    ),
    max_leaves=6,
)


def reads(fields: Fields, value: Any) -> bool:
    try:
        fields.read(value)
    except ApiError as problem:
        assert problem.status in (400, 404)
        return False
    return True


@pytest.mark.parametrize("name", ("completion", "chat", "tokenize"))
def test_a_body_is_read_exactly_if_it_follows_the_schema(name: str) -> None:
    """Two opinions of every body: ours, and that of a library on the schema we publish."""
    library = pytest.importorskip("jsonschema_rs")
    fields: Fields = getattr(PROTOCOL, name)
    verify = library.validator_for(fields.schema())
    base = {"model": "tiny"} | {
        "completion": {"prompt": "a"},
        "chat": {"messages": [{"role": "user", "content": "a"}]},
        "tokenize": {"prompt": "a"},
    }[name]
    members = st.sampled_from([*fields.members, "unknown"])
    counts = {True: 0, False: 0}

    @settings(max_examples=150)
    @given(st.dictionaries(members, _JSON, max_size=2))
    def check(changes: dict[str, Any]) -> None:
        body = base | changes
        is_read = reads(fields, body)
        assert is_read == verify.is_valid(body), body
        counts[is_read] += 1

    check()
    assert min(counts.values()) > 0  # of both kinds


def test_a_prediction_may_be_longer_than_any_text_that_fits() -> None:
    """Its schema is that of any object."""
    messages = [{"role": "user", "content": "a"}]
    prediction = {"type": "content", "content": "a" * BOUNDS.max_characters}
    assert reads(PROTOCOL.chat, {"model": "tiny", "messages": messages, "prediction": prediction})


@given(st.binary(max_size=50))
def test_any_bytes_are_json_or_a_problem(body: bytes) -> None:
    try:
        json.dumps(parse_json(body), allow_nan=False)
    except ApiError as problem:
        assert problem.status == 400 and problem.code == "invalid_json"


def test_defaults_are_those_of_openai() -> None:
    asked = read_completion(PROTOCOL, {"model": "tiny", "prompt": "a", "max_tokens": 2})
    assert (asked.n, asked.sampling, asked.logprobs) == (1, Sampling(1.0), None)
    assert not asked.stream and asked.stops == () and asked.prompts == ("a",)
    default = read_completion(PROTOCOL, {"model": "tiny", "prompt": [1, 2]})
    assert default.new_tokens(100) == 16 and default.new_tokens(4) == 4
    assert default.prompts == ((1, 2),)


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": parts, "name": "me"}]}
    assert read_chat(PROTOCOL, body).messages == ({"role": "user", "content": "ab"},)


def test_messages_are_bounded_together() -> None:
    long = [{"role": "user", "content": "a" * BOUNDS.max_characters}] * 2
    with pytest.raises(ApiError, match="characters"):
        read_chat(PROTOCOL, {"model": "tiny", "messages": long})


CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("part", ("image_url", "input_audio", "file"))
def test_what_is_no_text_is_refused_in_words(part: str) -> None:
    content = [{"type": "text", "text": "a"}, {"type": part, part: {"url": "data:,"}}]
    body = CHAT | {"messages": [{"role": "user", "content": content}]}
    with pytest.raises(ApiError, match="does not do pictures, sound or files") as caught:
        read_chat(PROTOCOL, body)
    assert caught.value.code == "unsupported_parameter"
    assert (caught.value.param or "").startswith("messages[0].content[1]")


@pytest.mark.parametrize("name", ("functions", "audio", "reasoning_effort", "web_search_options"))
def test_what_would_change_the_answer_is_refused_in_words(name: str) -> None:
    with pytest.raises(ApiError, match=f"{name}: this server does not do .* leave {name} out"):
        read_chat(PROTOCOL, CHAT | {name: "high"})
    assert read_chat(PROTOCOL, CHAT | {name: None}) == read_chat(PROTOCOL, CHAT)


def test_what_changes_nothing_is_read_within_bounds() -> None:
    harmless = {
        "user": "me",
        "safety_identifier": "me",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
    }
    assert set(harmless) == set(HARMLESS)
    more = {"verbosity": "medium", "modalities": ["text"], "prediction": {"content": "a"}}
    assert read_chat(PROTOCOL, CHAT | harmless | more) == read_chat(PROTOCOL, CHAT)
    for name in HARMLESS:
        with pytest.raises(ApiError, match=name):
            read_chat(PROTOCOL, CHAT | {name: {"a": "x" * 10**6}})


def test_top_logprobs_alone_mean_nothing_and_are_refused() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}
    with pytest.raises(ApiError, match="logprobs"):
        read_chat(PROTOCOL, body)


def test_every_field_has_a_bound() -> None:
    """No number, text or list in the document is without a maximum."""

    needed = {"integer": "maximum", "number": "maximum", "string": "maxLength"}
    needed |= {"array": "maxItems"}

    def check(schema: Any, at: str) -> None:
        if isinstance(schema, list):
            for part in cast(list[Any], schema):
                check(part, at)
        if isinstance(schema, dict):
            members = cast(dict[str, Any], schema)
            kind = members.get("type")
            if isinstance(kind, str) and kind in needed:
                assert needed[kind] in members, at
            for name, part in members.items():
                check(part, f"{at}.{name}")

    document = openapi(PROTOCOL, version="0", with_keys=False)
    for path, methods in document["paths"].items():
        if "post" in methods:
            check(methods["post"]["requestBody"], path)
