"""Calls of tools and thoughts: told apart in whatever pieces a text comes, or forced."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.serve.chat.chat_template import load_template
from rooflight.serve.chat.tools import (
    FORCED,
    HERMES,
    LLAMA,
    MISTRAL,
    CallForm,
    ParsedReply,
    ReplyParser,
    call_form,
)
from rooflight.serve.http.asked import read_chat
from rooflight.serve.http.protocol import make_protocol
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.problem import ApiError

from .server_process import Server, start_server
from .tiny_model import BOS, EOS, make_folder

NAMES = ("add", "find")
ADD = {"name": "add", "arguments": {"a": 1, "b": "é <tool_call>"}}
CALL = json.dumps(ADD, ensure_ascii=False)
TEMPLATE = (
    "{{ bos_token }}{% if tools %}Tools: {{ tools | tojson }} say <tool_call>{% endif %}"
    "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.tool_call_id }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"kind": {"$ref": "#/$defs/Kind"}, "is_sure": {"type": "boolean"}},
                "required": ["kind", "is_sure"],
                "additionalProperties": False,
                "$defs": {"Kind": {"enum": [1, 22, 333]}},
            },
        },
    }
    for name in NAMES
]


def parse(
    form: CallForm | None, pieces: list[str], *, thinks: bool = False, begun: bool = False
) -> ParsedReply:
    parser = ReplyParser(form, NAMES, thinks=thinks, is_thought=begun)
    last = len(pieces) - 1
    found = [parser.push(piece, is_last=i == last) for i, piece in enumerate(pieces)]
    calls = tuple(call for reply in found for call in reply.calls)
    assert len(calls) == parser.num_calls and len({call.id for call in calls}) == len(calls)
    return ParsedReply("".join(r.text for r in found), "".join(r.thought for r in found), calls)


def shown(reply: ParsedReply) -> tuple[str, str, list[tuple[str, Any]]]:
    return reply.text, reply.thought, [(c.name, json.loads(c.arguments)) for c in reply.calls]


ONE: list[Any] = [("add", ADD["arguments"])]
TWO: list[Any] = [("add", ADD["arguments"]), ("find", {})]
PLAIN_CALL = CALL.replace("<tool_call>", "")
NO_CALL = "<tool_call>nothing</tool_call> more"
NO_TOOL = '<tool_call>{"name": "rm"}</tool_call>'
THOUGHT = f"<think>a\n</think>b<tool_call>{CALL}</tool_call>"
SMALL: list[Any] = [("add", {"a": 1}), ("find", {})]
PLAIN = [("add", {"a": 1, "b": "é "})]
CASES: list[tuple[CallForm | None, str, dict[str, bool], Any]] = [
    (HERMES, f"Well.\n<tool_call>\n{CALL}\n</tool_call>", {}, ("Well.\n", "", ONE)),
    (
        HERMES,
        f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "find"}}</tool_call>',
        {},
        ("", "", TWO),
    ),
    (
        HERMES,
        "<tool_call>nothing</tool_call> more",
        {},
        ("<tool_call>nothing</tool_call> more", "", []),
    ),
    (
        HERMES,
        '<tool_call>{"name": "rm"}</tool_call>',
        {},
        ('<tool_call>{"name": "rm"}</tool_call>', "", []),
    ),
    (HERMES, '<tool_call>{"name": "add", "argu', {}, ('<tool_call>{"name": "add", "argu', "", [])),
    (HERMES, f"<tool_call>{CALL}", {}, ("", "", ONE)),
    (HERMES, "a < b <tool", {}, ("a < b <tool", "", [])),
    (
        HERMES,
        f"<think>a\n</think>b<tool_call>{CALL}</tool_call>",
        {"thinks": True},
        ("b", "a\n", ONE),
    ),
    (None, "so</think>\n\nyes", {"thinks": True, "begun": True}, ("\n\nyes", "so", [])),
    (None, "never ends", {"thinks": True, "begun": True}, ("", "never ends", [])),
    (MISTRAL, f'[TOOL_CALLS][{CALL}, {{"name": "find", "arguments": {{}}}}]', {}, ("", "", TWO)),
    (MISTRAL, f"[TOOL_CALLS]add[ARGS]{json.dumps(ADD['arguments'])}", {}, ("", "", ONE)),
    (
        MISTRAL,
        '[TOOL_CALLS]add{"a": 1}[TOOL_CALLS]find{}',
        {},
        ("", "", [("add", {"a": 1}), ("find", {})]),
    ),
    (LLAMA, '{"name": "add", "parameters": {"a": 1}}', {}, ("", "", [("add", {"a": 1})])),
    (LLAMA, f"<|python_tag|>{PLAIN_CALL}; {PLAIN_CALL}", {}, ("", "", PLAIN * 2)),
    (LLAMA, '{"answer": 42}', {}, ('{"answer": 42}', "", [])),
    (LLAMA, '\n{"name": "find", "parameters": {}}', {}, ("", "", [("find", {})])),
    (FORCED, CALL, {}, ("", "", ONE)),
    (FORCED, CALL[:9], {}, (CALL[:9], "", [])),
    (None, f"<tool_call>{CALL}</tool_call>", {}, (f"<tool_call>{CALL}</tool_call>", "", [])),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@given(data=st.data())
def test_a_reply_is_the_same_in_whatever_pieces_it_comes(case: Any, data: st.DataObject) -> None:
    form, text, options, wanted = case
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    alone = re.split(r"(?<=\S)(?=\n)", text)  # a line before the first call, and all that follows
    for some in (pieces, [text], list(text), [alone[0], "".join(alone[1:])]):
        assert shown(parse(form, some, **options)) == wanted


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", "<think>", "</think>", "a"])))
def test_no_text_is_lost_that_is_no_call(words: list[str]) -> None:
    text = "".join(words)
    assert parse(HERMES, words or [""]).text == text


def test_the_form_of_calls_is_that_of_the_template() -> None:
    assert call_form(TEMPLATE) is HERMES
    assert call_form("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]") is MISTRAL
    assert call_form('{% if tools %}{"name": name, "parameters": values}{% endif %}') is LLAMA
    assert call_form("{{ messages }} <tool_call>") is None and call_form("{{ tools }}") is None


def test_a_template_writes_tools_as_transformers_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_folder(tmp_path / "tools")
    names = {"chat_template": TEMPLATE, "bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[Any] = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    body = {"model": "tiny", "messages": messages, "tools": TOOLS}
    asked = read_chat(make_protocol(Bounds(9, 100), model="tiny"), body)
    wanted = theirs.apply_chat_template(
        list(asked.messages), tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    ours = load_template(folder)
    assert ours is not None
    assert ours.render(asked.messages, asked.tools, most=9999) == wanted
    assert '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' in wanted
    ours.stop()


@pytest.mark.parametrize(
    ("change", "why"),
    (
        ({"tool_choice": "required", "tools": None}, "needs tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "not a tool"),
        ({"response_format": {"type": "json_object"}}, "either tools or a response_format"),
        ({"tools": [TOOLS[0]] * 129}, "129 items"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "strict"),
        (
            {
                "tool_choice": "required",
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"x": "y" * 9999}}}
                ]
                * 2,
            },
            "characters in all",
        ),
        (
            {
                "tool_choice": "required",
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"$defs": [1]}}}
                ],
            },
            "not an object",
        ),
        ({"messages": [{"role": "user"}]}, "content: missing"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "a", "arguments": "{"}}],
                    }
                ]
            },
            "not JSON",
        ),
    ),
)
def test_tools_that_cannot_be_are_refused_in_words(change: dict[str, Any], why: str) -> None:
    protocol = make_protocol(Bounds(9, 4096), model="tiny")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "tools": TOOLS}
    with pytest.raises(ApiError, match=why):
        read_chat(protocol, body | change)


def tools_folder(folder: Path) -> Path:
    """A tiny model whose chat template knows tools, and says little of them."""
    template = TEMPLATE.replace("{{ tools | tojson }}", "{{ tools | length }}")
    names = {"chat_template": template, "bos_token": BOS, "eos_token": EOS}
    make_folder(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tools_folder(tmp_path_factory.mktemp("tools") / "tiny")) as server:
        yield server


def test_a_call_that_must_be_is_valid_whole_and_streamed(caller: Server) -> None:
    pytest.importorskip("llguidance")
    find = {"type": "function", "function": {"name": "find"}}
    for choice in ("required", find):
        fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 100}
        fields |= {"temperature": 1, "seed": 3}
        body = caller.client.chat("add", **fields)
        assert body.status == 200, body.body
        (choice_found,) = body.json["choices"]
        message = choice_found["message"]
        assert choice_found["finish_reason"] == "tool_calls" and message["content"] is None
        (call,) = message["tool_calls"]
        given = json.loads(call["function"]["arguments"])
        assert given["kind"] in (1, 22, 333) and given["is_sure"] in (True, False)
        assert call["function"]["name"] in (NAMES if choice == "required" else ("find",))
        events = caller.client.chat("add", **fields, stream=True).events
        deltas = [e["choices"][0] for e in events]
        calls = [c for d in deltas for c in d["delta"].get("tool_calls", ())]
        assert [c["function"] for c in calls] == [call["function"]] and calls[0]["index"] == 0
        assert deltas[-1]["finish_reason"] == "tool_calls"


def test_a_model_that_may_call_and_does_not_says_its_text(caller: Server, server: Server) -> None:
    fields: dict[str, Any] = {"tools": TOOLS[:1], "max_tokens": 12}
    auto = caller.client.chat("hello", **fields).json["choices"][0]
    assert isinstance(auto["message"]["content"], str) and "tool_calls" not in auto["message"]
    none = caller.client.chat("hello", **fields, tool_choice="none").json["choices"]
    assert none == caller.client.chat("hello", max_tokens=12).json["choices"]
    refused = server.client.chat("hello", **fields)
    assert refused.status == 400 and refused.code == "no_tools"
