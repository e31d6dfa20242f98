"""Parses a chat template and renders it, in a sandbox, in a process of its own: see `bounded`.

The sandbox keeps a template from importing, calling into objects and changing anything; only the
process keeps it from loops without end and powers without bounds, when it is parsed as well.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_REFUSED, _FAILED = "refused", "failed"


class _Refusal(TemplateError):
    """A template that says why messages do not suit it."""


def make(told: Mapping[str, Any]) -> Callable[[Mapping[str, Any] | None], dict[str, str]]:
    """`told` has the source and the names of special tokens; a task messages and a bound.

    A task without anything answers whether the template parses.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    functions: dict[str, Any] = environment.globals
    functions |= {"raise_exception": _refuse, "strftime_now": _now}
    environment.filters["tojson"] = _tojson
    parsed: list[Any] = []  # jinja2 annotates its own functions only in part

    def render(task: Mapping[str, Any] | None) -> dict[str, str]:
        try:
            if not parsed:
                parsed.append(environment.from_string(told["source"]))
            return {"text": "" if task is None else _text(parsed[0], told["names"], task)}
        except _Refusal as refusal:
            return {_REFUSED: str(refusal)}
        except Exception as error:  # whatever a template does wrong with these messages
            return {_FAILED: str(error)[:200]}

    return render


def _text(template: Any, names: Mapping[str, str], task: Mapping[str, Any]) -> str:
    parts: list[str] = []
    length = 0
    told = {"messages": task["messages"], "tools": task["tools"], "add_generation_prompt": True}
    for part in template.generate(**told, **names):
        parts.append(part)
        length += len(part)
        if length > task["most"]:
            raise _Refusal(f"above {task['most']} characters in all")
    return "".join(parts)


def _refuse(message: str) -> NoReturn:
    raise _Refusal(str(message)[:200])


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(value: object, indent: int | None = None) -> str:
    """As `transformers` has it: no escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
