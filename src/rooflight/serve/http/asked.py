"""`GenerationRequest`: a generation that a client asks for, read off a validated body."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from rooflight.serve.http.fields import Json
from rooflight.serve.http.problem import invalid
from rooflight.serve.http.protocol import Protocol

Prompt = str | tuple[int, ...]
Message = Mapping[str, str]
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
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    logprobs: int | None  # alternatives for each token; None reports nothing
    ignore_eos: bool
    stream: bool
    include_usage: bool
    schema: Mapping[str, Json] | None  # of the JSON that the text must be

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
    messages = tuple(_message(one) for one in found["messages"])
    if sum(len(m["content"]) for m in messages) > protocol.bounds.max_characters:
        raise invalid("messages", f"above {protocol.bounds.max_characters} characters in all")
    max_tokens = found["max_completion_tokens"] or found["max_tokens"]
    return _asked(Endpoint.CHAT, found, (), messages, max_tokens, logprobs)


def _asked(
    kind: Endpoint,
    found: Mapping[str, Json],
    prompts: tuple[Prompt, ...],
    messages: tuple[Message, ...],
    max_tokens: int | None,
    logprobs: int | None,
) -> GenerationRequest:
    stop = cast(str | list[str] | None, found["stop"])
    temperature = found["temperature"]
    return GenerationRequest(
        kind,
        prompts,
        messages,
        n=found["n"] or 1,
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=found["top_p"] or 1.0,
        top_k=max(0, found["top_k"] or 0),
        seed=found["seed"],
        stops=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        logprobs=logprobs,
        ignore_eos=bool(found["ignore_eos"]),
        stream=bool(found["stream"]),
        include_usage=bool(found["stream_options"] and found["stream_options"]["include_usage"]),
        schema=_schema(found["response_format"]),
    )


def _prompts(value: Json) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    items = cast(list[Json], value)
    if isinstance(items[0], int):
        return (tuple(items),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in items)


def _message(value: Mapping[str, Json]) -> Message:
    content = value["content"]
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)
    return {"role": value["role"], "content": content}


def _schema(response_format: Mapping[str, Json] | None) -> Mapping[str, Json] | None:
    if response_format is None or response_format["type"] == "text":
        return None
    if response_format["type"] == "json_object":
        return {"type": "object"}
    return response_format["json_schema"]["schema"]
