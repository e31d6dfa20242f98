"""Makes calls by OpenAI's own client: `python openai_worker.py URL`, calls as JSON on stdin.

Prints, for each, the status, and what the client made of an answer: texts, calls of tools, ends.
"""

import inspect
import json
import sys
from importlib import import_module
from typing import Any

openai: Any = import_module("openai")  # which is not installed beside this
client: Any = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)


def seen(answer: Any) -> list[Any]:
    """Of a whole answer, or of the events of a stream put together."""
    found: dict[int, list[Any]] = {}
    for event in [answer] if hasattr(answer, "choices") else answer:
        for choice in event.choices:
            part = getattr(choice, "message", None) or getattr(choice, "delta", None)
            mine = found.setdefault(choice.index, ["", [], None])
            mine[0] += (part.content if part is not None else choice.text) or ""
            calls = getattr(part, "tool_calls", None) or ()
            mine[1] += [[c.function.name, c.function.arguments] for c in calls]
            mine[2] = choice.finish_reason or mine[2]
    return [found[index] for index in sorted(found)]


def call(kind: str, body: dict[str, Any]) -> list[Any]:
    if kind == "models.retrieve":
        run, known = client.models.retrieve, {"model"}
    else:
        run = (client.chat.completions if kind.startswith("chat") else client.completions).create
        known = set(inspect.signature(run).parameters)
    named = {name: value for name, value in body.items() if name in known}
    more = {name: value for name, value in body.items() if name not in known}
    try:
        answer = run(**named, **({"extra_body": more} if more else {}))
        return [200, [answer.id] if kind == "models.retrieve" else seen(answer)]
    except openai.APIStatusError as error:
        return [error.status_code, error.code]


print(json.dumps([call(kind, body) for kind, body in json.load(sys.stdin)]))
