"""`GenerationRequest`: a generation that a client asks for, read off a validated body."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from rooflight.serve.engine.request import Sampling
from rooflight.serve.http.protocol import Protocol
from rooflight.serve.server.fields import Json
from rooflight.serve.server.problem import invalid

Prompt = str | tuple[int, ...]
Message = Mapping[str, Json]
_ROLE = 9  # characters at most, which do not count
_COMPLETION_TOKENS = 16  # OpenAI's default; a chat goes on to the end of the model


class Endpoint(StrEnum):
    """The two shapes of an answer."""

    COMPLETION = "completion"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate, within bounds; prompts are not tokenised yet."""

    kind: Endpoint
    prompts: tuple[Prompt, ...]  # of a completion
    messages: tuple[Message, ...]  # of a chat
    n: int
    max_tokens: int | None  # None: see `new_tokens`
    sampling: Sampling  # but for the seed
    seed: int | None
    stops: tuple[str, ...]
    logprobs: int | None  # alternatives for each token; None reports nothing
    ignore_eos: bool
    stream: bool
    include_usage: bool
    schema: Mapping[str, Json] | None  # of the JSON that the text must be
    tools: tuple[Json, ...] = ()  # that may be called
    must_call: bool = False  # one of those in the schema
    one_call: bool = False  # and no more

    def new_tokens(self, room: int) -> int:
        """As many as were asked for, or else the default, as far as there is room."""
        default = _COMPLETION_TOKENS if self.kind is Endpoint.COMPLETION else room
        return self.max_tokens or max(1, min(room, default))


def read_completion(protocol: Protocol, body: Json) -> GenerationRequest:
    """A body of /v1/completions."""
    found = protocol.completion.read(body)
    prompts = _prompts(found["prompt"])
    n = found["n"] or 1
    if len(prompts) * n > protocol.bounds.max_choices:
        raise invalid("n", f"prompts times n is above {protocol.bounds.max_choices}")
    return _asked(Endpoint.COMPLETION, found, prompts, (), found["max_tokens"], found["logprobs"])


def read_chat(protocol: Protocol, body: Json) -> GenerationRequest:
    """A body of /v1/chat/completions."""
    found = protocol.chat.read(body)
    if found["top_logprobs"] is not None and not found["logprobs"]:
        raise invalid("top_logprobs", "needs logprobs: true")
    logprobs = (found["top_logprobs"] or 0) if found["logprobs"] else None
    messages = tuple(_message(one, f"messages[{i}]") for i, one in enumerate(found["messages"]))
    lengths = [sum(len(str(part)) for part in message.values()) for message in messages]
    if sum(lengths) - _ROLE * len(lengths) > protocol.bounds.max_characters:
        raise invalid("messages", f"above {protocol.bounds.max_characters} characters in all")
    max_tokens = found["max_completion_tokens"] or found["max_tokens"]
    asked = _asked(Endpoint.CHAT, found, (), messages, max_tokens, logprobs)
    return _with_tools(asked, found, protocol.bounds.max_schema_characters)


def _with_tools(
    asked: GenerationRequest, found: Mapping[str, Json], most: int
) -> GenerationRequest:
    """A chat with the tools that it may call, and the form of a call if there must be one."""
    tools = cast(list[Json], found["tools"] or [])
    choice = found["tool_choice"] or ("auto" if tools else "none")
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    chosen = [t["function"] for t in tools if named in (None, t["function"]["name"])]
    if choice == "none":
        return asked
    if not chosen:
        raise invalid("tool_choice", "not a tool that is offered" if named else "needs tools")
    if asked.schema is not None:
        raise invalid("tool_choice", "either tools or a response_format; send none with the other")
    tools = [{**t, "function": _given(t["function"])} for t in tools]
    one_call = found["parallel_tool_calls"] is False
    if choice == "auto":
        if any(tool["strict"] for tool in chosen):
            raise invalid("tools", "strict arguments need tool_choice: required or a function")
        return replace(asked, tools=tuple(tools), one_call=one_call)
    schema = _call_schema(chosen)
    if len(json.dumps(schema)) > most:
        raise invalid("tools", f"parameters above {most} characters in all")
    return replace(asked, tools=tuple(tools), must_call=True, schema=schema)


def _call_schema(tools: Sequence[Mapping[str, Json]]) -> Mapping[str, Json]:
    """Of a call of one of these; what they define is referred to from the root."""
    calls, definitions = list[Json](), dict[str, Json]()
    for tool in tools:
        given = dict(cast(dict[str, Json], tool["parameters"] or {"type": "object"}))
        defined = given.pop("$defs", None) or {}
        if not isinstance(defined, dict):
            raise invalid("tools", "$defs that is not an object")
        for name, form in cast(dict[str, Json], defined).items():
            if definitions.setdefault(name, form) != form:
                raise invalid("tools", "two that define one name of $defs in two ways")
        members = {"name": {"const": tool["name"]}, "arguments": given}
        form = {"type": "object", "properties": members, "required": [*members]}
        calls.append({**form, "additionalProperties": False})
    return {"anyOf": calls, **({"$defs": definitions} if definitions else {})}


def _asked(
    kind: Endpoint,
    found: Mapping[str, Json],
    prompts: tuple[Prompt, ...],
    messages: tuple[Message, ...],
    max_tokens: int | None,
    logprobs: int | None,
) -> GenerationRequest:
    stop = cast(str | list[str] | None, found["stop"])
    return GenerationRequest(
        kind,
        prompts,
        messages,
        n=found["n"] or 1,
        max_tokens=max_tokens,
        sampling=_sampling(found),
        seed=found["seed"],
        stops=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        logprobs=logprobs,
        ignore_eos=bool(found["ignore_eos"]),
        stream=bool(found["stream"]),
        include_usage=bool(found["stream_options"] and found["stream_options"]["include_usage"]),
        schema=_schema(found["response_format"]),
    )


def _sampling(found: Mapping[str, Json]) -> Sampling:
    penalties = (f"{kind}_penalty" for kind in ("presence", "frequency", "repetition"))
    given = _given({name: found[name] for name in ("temperature", "top_p", "min_p", *penalties)})
    biases = tuple((found["logit_bias"] or {}).items())
    top_k = max(0, found["top_k"] or 0)
    return replace(Sampling(1.0, top_k=top_k, logit_bias=biases), **given)


def _prompts(value: Json) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    items = cast(list[Json], value)
    if isinstance(items[0], int):
        return (tuple(items),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in items)


def _message(value: Mapping[str, Json], at: str) -> Message:
    """As templates take it: text joined, arguments of calls as objects, nothing that is null."""
    content, calls = value["content"], value["tool_calls"]
    if content is None and not calls:
        raise invalid(f"{at}.content", "missing")
    if isinstance(content, list):
        content = "".join(part["text"] for part in cast(list[Json], content))
    others = {name: value[name] for name in ("tool_call_id", "reasoning_content")}
    if calls:
        others["tool_calls"] = [_past_call(call, f"{at}.tool_calls") for call in calls]
    return {"role": value["role"], "content": content or "", **_given(others)}


def _past_call(call: Mapping[str, Json], at: str) -> Json:
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
        str(arguments)  # as deep as a stack, or refused
    except (ValueError, RecursionError):
        raise invalid(at, "arguments that are not JSON") from None
    function = {"name": call["function"]["name"], "arguments": arguments}
    return {"type": "function", "function": function, **_given({"id": call["id"]})}


def _given(members: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in members.items() if value is not None}


def _schema(response_format: Mapping[str, Json] | None) -> Mapping[str, Json] | None:
    if response_format is None or response_format["type"] == "text":
        return None
    if response_format["type"] == "json_object":
        return {"type": "object"}
    return response_format["json_schema"]["schema"]
