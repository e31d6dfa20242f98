"""The chat template of a folder: messages to one prompt.

A template comes from the operator's own folder and never from a request; it can still be somebody
else's, so it is parsed and rendered in a process that can hurt itself only (`template_render`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rooflight.errors import UsageError
from rooflight.files import read_file
from rooflight.serve.chat.bounded import Bounded, TooMuch
from rooflight.serve.chat.tokens import read_object
from rooflight.serve.chat.tools import CallForm, call_form
from rooflight.serve.server.problem import invalid

Message = Mapping[str, Any]
_HINT = "repair chat_template in tokenizer_config.json, or remove it"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that parses, in its process."""

    process: Bounded
    form: CallForm | None  # in which it shows calls of tools
    thinks: bool

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, most: int) -> str:
        """One prompt, ready for the assistant's turn, of at most `most` characters."""
        told = {"messages": [dict(m) for m in messages], "tools": list(tools) or None}
        try:
            found = self.process.ask({**told, "most": most})
        except TooMuch:
            raise invalid("messages", "the chat template takes too long for these") from None
        if "text" in found:
            return found["text"]
        refused = found.get("refused", "the chat template cannot write these")
        raise invalid("messages", refused)

    def stop(self) -> None:
        self.process.stop()


def load_template(folder: Path) -> ChatTemplate | None:
    """From chat_template.jinja or tokenizer_config.json; None if neither has one."""
    config_path, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = read_object(config_path, hint=_HINT) if config_path.exists() else {}
    source = read_file(file, hint=_HINT) if file.exists() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    process = Bounded(
        "rooflight.serve.chat.template_render", {"source": source, "names": _names(config)}
    )
    try:
        failed = process.ask(None).get("failed")
    except TooMuch:
        failed = "it takes too long"
    if failed is not None:
        process.stop()
        raise UsageError(f"the chat template of {folder} does not parse: {failed}", hint=_HINT)
    return ChatTemplate(process, call_form(source), "<think>" in source)


def _names(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and others, as text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        text = cast(dict[str, Any], value).get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
