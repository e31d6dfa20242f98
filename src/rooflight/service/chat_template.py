"""The chat template of a folder: messages to one prompt, in a sandbox.

A template comes from the operator's own folder and never from a request; it can still be somebody
else's, so it runs where it can neither import, call into objects, nor change anything.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rooflight.errors import UsageError
from rooflight.service.problem import Problem, invalid

Message = Mapping[str, str]


class _Refusal(TemplateError):
    """A template that says why messages do not suit it."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template, and the names of special tokens that it may write."""

    template: Any  # jinja2.Template; it annotates its own functions only in part
    names: Mapping[str, str]

    def render(self, messages: Sequence[Message], *, most: int) -> str:
        """One prompt, ready for the assistant's turn, of at most `most` characters."""
        try:
            parts: list[str] = []
            length = 0
            for part in self.template.generate(
                messages=[dict(m) for m in messages], add_generation_prompt=True, **self.names
            ):
                parts.append(part)
                length += len(part)
                if length > most:
                    raise invalid("messages", f"above {most} characters in all")
            return "".join(parts)
        except _Refusal as refusal:
            raise invalid("messages", str(refusal)) from None
        except Problem:
            raise
        except Exception:  # whatever a template does wrong with these messages
            raise invalid("messages", "the chat template cannot write these") from None


def load_template(folder: Path) -> ChatTemplate | None:
    """From chat_template.jinja or tokenizer_config.json; None if neither has one."""
    config_path, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config: dict[str, Any] = json.loads(config_path.read_text()) if config_path.exists() else {}
    source = file.read_text() if file.exists() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    functions: dict[str, Any] = environment.globals
    functions |= {"raise_exception": _refuse, "strftime_now": _now}
    environment.filters["tojson"] = _tojson
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise UsageError(
            f"the chat template of {folder} does not parse: {error}",
            hint="repair chat_template in tokenizer_config.json, or remove it",
        ) from None
    return ChatTemplate(template, _names(config))


def _names(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and others, as text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        text = cast(dict[str, Any], value).get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _refuse(message: str) -> NoReturn:
    raise _Refusal(str(message)[:200])


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(value: object, indent: int | None = None) -> str:
    """As `transformers` has it: no escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
