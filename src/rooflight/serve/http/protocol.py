"""The request models of the API: every field with its bounds.

Parameters that this server does not honour are refused, unless they say nothing (`best_of: 1`):
a setting is never ignored in silence.
"""

from dataclasses import dataclass

from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.fields import (
    AnyOf,
    Enumeration,
    Fields,
    Flag,
    FreeObject,
    Integer,
    Items,
    Json,
    JsonField,
    Real,
    Text,
    TokenNumbers,
    Unserved,
)
from rooflight.serve.server.problem import ApiError, invalid

_MAX_SEED = 2**31 - 1
_NULL = Enumeration((None,))
# Read and bounded, and of no effect on an answer: who asks, what a hosted service keeps or bills.
HARMLESS: dict[str, JsonField] = {
    **dict.fromkeys(("user", "safety_identifier", "service_tier"), Text(256)),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), Text(256)),
    "metadata": FreeObject(16 * 1024),
    "store": Flag(),
}
_UNSERVED_CHAT = {
    "audio": "sound",
    "reasoning_effort": "efforts of reasoning",
    "web_search_options": "searches of the web",
    "functions": "functions, which are called tools now",
    "function_call": "functions, which are called tools now",
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """The request models of one server."""

    completion: Fields
    chat: Fields
    tokenize: Fields
    detokenize: Fields
    bounds: Bounds


def make_protocol(bounds: Bounds, *, model: str) -> Protocol:
    """The models, with the bounds and the one model name of this server."""
    text = Text(bounds.max_characters, least=1)
    ids = Items(Integer(0, bounds.vocab - 1), bounds.max_model_tokens, least=1)
    prompt = AnyOf(
        (text, ids, *(Items(one, bounds.max_choices, least=1) for one in (text, ids))),
        f"a text of at most {bounds.max_characters} characters, at most {bounds.max_model_tokens}"
        f" token ids from 0 to {bounds.vocab - 1}, or at most {bounds.max_choices} of these",
    )
    name, shared = _Model(model), _shared(bounds)
    completion = {"model": name, "prompt": prompt, **shared, **_completion_only(bounds)}
    chat = {"model": name, "messages": _messages(bounds), **shared, **_chat_only(bounds)}
    return Protocol(
        Fields(completion, ("model", "prompt")),
        Fields(chat, ("model", "messages")),
        Fields({"model": name, "prompt": text, "add_special_tokens": Flag()}, ("prompt",)),
        Fields({"model": name, "tokens": ids}, ("tokens",)),
        bounds,
    )


@dataclass(frozen=True, slots=True)
class _Model:
    """The name of the one model there is; another is 404, as OpenAI has it."""

    name: str

    def read(self, value: Json, at: str) -> str:
        if type(value) is not str:
            raise invalid(at, "not a string")
        if value != self.name:
            raise ApiError(404, "model_not_found", f"only {self.name!r} is served", param=at)
        return value

    def schema(self) -> dict[str, Json]:
        return {"enum": [self.name]}


def _shared(bounds: Bounds) -> dict[str, JsonField]:
    tokens = Integer(1, bounds.max_model_tokens - 1)
    stop = Text(bounds.max_stop_characters, least=1)
    stops = AnyOf(
        (stop, Items(stop, bounds.max_stops)), f"at most {bounds.max_stops} short strings"
    )
    return {
        "max_tokens": tokens,
        "temperature": Real(0, 2),
        "top_p": Real(1e-6, 1),
        "top_k": Integer(-1, bounds.vocab),
        "n": Integer(1, bounds.max_choices),
        "seed": Integer(0, _MAX_SEED),
        "stop": stops,
        "stream": Flag(),
        "stream_options": Fields({"include_usage": Flag(), "include_obfuscation": Flag()}),
        "ignore_eos": Flag(),
        **HARMLESS,
        "response_format": _response_format(bounds),
        "min_p": Real(0, 1),
        "frequency_penalty": Real(-2, 2),
        "presence_penalty": Real(-2, 2),
        "repetition_penalty": Real(0.01, 100),
        "logit_bias": TokenNumbers(bounds.vocab, Real(-100, 100), bounds.max_biases),
    }


def _completion_only(bounds: Bounds) -> dict[str, JsonField]:
    return {
        "logprobs": Integer(0, bounds.max_logprobs),
        "best_of": Unserved(Enumeration((1,)), "the best of several sequences", "1"),
        "echo": Unserved(Enumeration((False,)), "prompts in answers", "false"),
        "suffix": Unserved(Enumeration(("",)), "text between two others", '""'),
    }


def _chat_only(bounds: Bounds) -> dict[str, JsonField]:
    return {
        "max_completion_tokens": Integer(1, bounds.max_model_tokens - 1),
        "logprobs": Flag(),
        "top_logprobs": Integer(0, bounds.max_logprobs),
        "prediction": FreeObject(bounds.max_schema_characters),  # may save time, changes no words
        "verbosity": Unserved(Enumeration(("medium",)), "other verbosities", '"medium"'),
        "modalities": Unserved(Items(Enumeration(("text",)), 1), "other modalities", '["text"]'),
        **{name: Unserved(_NULL, what, "null") for name, what in _UNSERVED_CHAT.items()},
        "tools": Items(_function(bounds), bounds.max_tools),
        "tool_choice": _tool_choice(),
        "parallel_tool_calls": Flag(),
    }


def _messages(bounds: Bounds) -> Items:
    text = Text(bounds.max_characters)
    kind = Unserved(Enumeration(("text",)), "pictures, sound or files", '"text"')
    media = Unserved(_NULL, "pictures, sound or files", "null")
    others = dict.fromkeys(("image_url", "input_audio", "file"), media)
    part = Fields({"type": kind, "text": text, **others}, ("type", "text"))
    content = AnyOf((text, Items(part, bounds.max_messages)), "a text or a list of text parts")
    called = Fields({"name": Text(64, least=1), "arguments": text}, ("name", "arguments"))
    kind = Enumeration(("function",))
    call = Fields({"id": Text(128), "type": kind, "function": called}, ("function",))
    message = {
        "role": Enumeration(("system", "developer", "user", "assistant", "tool")),
        "content": content,
        "name": Text(64),
        "tool_calls": Items(call, bounds.max_tools),
        "tool_call_id": Text(128),
        "reasoning_content": text,
        "refusal": Unserved(_NULL, "refusals", "null"),
        "annotations": Items(_NULL, 0),
    }
    return Items(Fields(message, ("role",)), bounds.max_messages, least=1)


def _function(bounds: Bounds) -> Fields:
    """A tool."""
    members = {
        "name": Text(64, least=1),
        "description": Text(bounds.max_characters),
        "parameters": FreeObject(bounds.max_schema_characters),
        "strict": Flag(),
    }
    function = Fields(members, ("name",))
    return Fields({"type": Enumeration(("function",)), "function": function}, ("type", "function"))


def _tool_choice() -> JsonField:
    named = Fields({"name": Text(64, least=1)}, ("name",))
    one = {"type": Enumeration(("function",)), "function": named}
    fields = (Enumeration(("none", "auto", "required")), Fields(one, ("type", "function")))
    return AnyOf(fields, "none, auto, required or the name of a function")


def _response_format(bounds: Bounds) -> JsonField:
    named = {"name": Text(64), "schema": FreeObject(bounds.max_schema_characters), "strict": Flag()}
    return AnyOf(
        (
            Fields({"type": Enumeration(("text", "json_object"))}, ("type",)),
            Fields(
                {"type": Enumeration(("json_schema",)), "json_schema": Fields(named, ("schema",))},
                ("type", "json_schema"),
            ),
        ),
        "text, json_object or a json_schema",
    )
