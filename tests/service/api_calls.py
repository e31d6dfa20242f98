"""Calls that OpenAI's clients make, each with what this server does about it."""

from typing import Any, NamedTuple

HONOURED, NO_EFFECT, REFUSED = "honoured", "no effect", "refused"
CHAT, COMPLETION, MODEL = "chat.completions", "completions", "models.retrieve"


class Call(NamedTuple):
    """A call, with the fields that it has beside the least there must be."""

    kind: str
    fields: dict[str, Any]
    verdict: str = HONOURED


_KIND = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
_KIND["additionalProperties"] = False  # pyright: ignore[reportArgumentType]
_TOOL = {"type": "function", "function": {"name": "look", "parameters": _KIND}}
_STRICT = {"type": "function", "function": {"name": "look", "strict": True}}
_LOOK = {"type": "function", "function": {"name": "look"}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": _KIND}}
_PAST = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
_SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
_USAGE = {"include_usage": True}


def _says(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


CALLS: tuple[Call, ...] = (
    Call(MODEL, {}),
    Call(MODEL, {"model": "nope"}, REFUSED),
    Call(CHAT, {}),
    Call(CHAT, {"stream": True}),
    Call(CHAT, {"stream": True, "stream_options": _USAGE}),
    Call(CHAT, _says({"type": "text", "text": "hello"})),
    Call(CHAT, {"messages": [{"role": r, "content": "a"} for r in ("system", "user")]}),
    Call(CHAT, {"messages": [{"role": "developer", "content": "be short"}]}),
    Call(CHAT, {"max_completion_tokens": 3}),
    Call(CHAT, {"max_tokens": 3}),
    Call(CHAT, {"temperature": 1.5, "seed": 7}),
    Call(CHAT, {"temperature": 1, "top_p": 0.5, "seed": 7}),
    Call(CHAT, {"temperature": 1, "top_k": 3, "seed": 7}),
    Call(CHAT, {"temperature": 1, "min_p": 0.2, "seed": 7}),
    Call(CHAT, {"presence_penalty": 1.5}),
    Call(CHAT, {"frequency_penalty": 1.5}),
    Call(CHAT, {"repetition_penalty": 1.3}),
    Call(CHAT, {"logit_bias": {"50": 100}}),
    Call(CHAT, {"n": 2, "temperature": 1, "seed": 1}),
    Call(CHAT, {"stop": ["a", "e"]}),
    Call(CHAT, {"logprobs": True, "top_logprobs": 2}),
    Call(CHAT, {"ignore_eos": True}),
    Call(CHAT, {"response_format": {"type": "text"}}),
    Call(CHAT, {"response_format": _SCHEMA}),
    Call(CHAT, {"response_format": _SCHEMA, "stream": True}),
    Call(CHAT, {"tools": [_TOOL]}),
    Call(CHAT, {"tools": [_TOOL], "tool_choice": "auto", "parallel_tool_calls": False}),
    Call(CHAT, {"tools": [_TOOL], "tool_choice": "required"}),
    Call(CHAT, {"tools": [_TOOL], "tool_choice": _LOOK}),
    Call(CHAT, {"tools": [_TOOL], "tool_choice": _LOOK, "stream": True}),
    Call(
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [_PAST]},
                {"role": "tool", "tool_call_id": "1", "content": "b"},
            ]
        },
    ),
    Call(CHAT, {"tools": [_TOOL], "tool_choice": "none"}, NO_EFFECT),
    Call(CHAT, {"user": "me"}, NO_EFFECT),
    Call(CHAT, {"metadata": {"a": "b"}}, NO_EFFECT),
    Call(CHAT, {"store": True}, NO_EFFECT),
    Call(CHAT, {"service_tier": "auto"}, NO_EFFECT),
    Call(CHAT, {"safety_identifier": "me"}, NO_EFFECT),
    Call(CHAT, {"prompt_cache_key": "k"}, NO_EFFECT),
    Call(CHAT, {"prediction": {"type": "content", "content": "a"}}, NO_EFFECT),
    Call(CHAT, {"modalities": ["text"]}, NO_EFFECT),
    Call(CHAT, {"verbosity": "medium"}, NO_EFFECT),
    Call(CHAT, {"model": "nope"}, REFUSED),
    Call(CHAT, {"messages": []}, REFUSED),
    Call(CHAT, _says(_PICTURE), REFUSED),
    Call(CHAT, _says(_SOUND), REFUSED),
    Call(CHAT, {"modalities": ["text", "audio"]}, REFUSED),
    Call(CHAT, {"verbosity": "low"}, REFUSED),
    Call(CHAT, {"reasoning_effort": "high"}, REFUSED),
    Call(CHAT, {"web_search_options": {}}, REFUSED),
    Call(CHAT, {"functions": [{"name": "look"}]}, REFUSED),
    Call(CHAT, {"temperature": 3}, REFUSED),
    Call(CHAT, {"top_logprobs": 2}, REFUSED),
    Call(CHAT, {"logit_bias": {"999999": 1}}, REFUSED),
    Call(CHAT, {"tools": [_STRICT]}, REFUSED),
    Call(CHAT, {"tool_choice": "required"}, REFUSED),
    Call(CHAT, {"tools": [_TOOL], "response_format": _SCHEMA}, REFUSED),
    Call(CHAT, {"response_format": {"type": "regex", "regex": "a"}}, REFUSED),
    Call(CHAT, {"no_such_parameter": 1}, REFUSED),
    Call(COMPLETION, {}),
    Call(COMPLETION, {"prompt": ["a", "b"], "n": 2}),
    Call(COMPLETION, {"prompt": [5, 6, 7]}),
    Call(COMPLETION, {"logprobs": 2}),
    Call(COMPLETION, {"stream": True, "stop": "e"}),
    Call(COMPLETION, {"best_of": 1, "echo": False, "suffix": ""}, NO_EFFECT),
    Call(COMPLETION, {"best_of": 3}, REFUSED),
    Call(COMPLETION, {"echo": True}, REFUSED),
    Call(COMPLETION, {"suffix": "end"}, REFUSED),
    Call(COMPLETION, {"max_tokens": 100_000}, REFUSED),
)


def body_of(call: Call) -> dict[str, Any]:
    """All that is sent."""
    least: dict[str, Any] = {"model": "tiny"}
    if call.kind == CHAT:
        least |= {"messages": [{"role": "user", "content": "hello"}]}
    if call.kind == COMPLETION:
        least |= {"prompt": "the cat"}
    if call.kind != MODEL:
        least |= {"max_tokens": 60, "temperature": 0}
    return least | call.fields
