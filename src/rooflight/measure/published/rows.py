"""Published measurements as rows: who measured what, how it was laid out, and what came out.

In: a file of the schema (`sources`, `models`, `runs`), YAML or JSON. Out: a `PublishedFile`. The
package ships `measured_runs.json`; a row there and in any other file reads the same.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from rooflight.errors import MissingExtraError, ParseError, install

Fields = Mapping[str, Any]  # a table of the file: values of any type until read
FOLDER = Path(__file__).parent
SHIPPED = FOLDER / "measured_runs.json", FOLDER / "mlperf_runs.json"
TRAINING = ("train", "sft", "lora")
_NEEDED = ("id", "kind", "source", "model", "chip", "measured")


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One measurement; what the file says, by name."""

    fields: Fields

    @property
    def id(self) -> str:
        return str(self.fields["id"])

    @property
    def kind(self) -> str:
        return str(self.fields["kind"])

    @property
    def source(self) -> str:
        return str(self.fields["source"])

    @property
    def model(self) -> str:
        return str(self.fields["model"])

    @property
    def chip(self) -> str:
        return str(self.fields["chip"])

    @property
    def measured(self) -> Fields:
        return self.table("measured")

    def table(self, name: str) -> Fields:
        """A table of the row; empty where the source does not say."""
        found = self.fields.get(name)
        return cast(Fields, found) if isinstance(found, dict) else {}

    @property
    def configuration(self) -> str:
        """What was run: rows that differ only in when they were measured share it."""
        left_out = ("id", "measured", "release", "flops", "file", "note", "maxtext", "section")
        left_out += ("assumed",)
        kept = {k: v for k, v in self.fields.items() if k not in left_out}
        return json.dumps(kept, sort_keys=True)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file: its rows, and the models and sources that they name."""

    sources: Mapping[str, Fields]
    models: Mapping[str, Fields]
    runs: tuple[PublishedRun, ...]

    def of(self, kinds: Sequence[str]) -> tuple[PublishedRun, ...]:
        return tuple(row for row in self.runs if row.kind in kinds)


def read_rows(path: Path) -> PublishedFile:
    """Reads a file of measured rows; a `.json` needs nothing, YAML needs the extra."""
    if not path.is_file():
        raise ParseError(f"{path} is not a file", hint="give a file of measured rows, YAML or JSON")
    text = path.read_text(encoding="utf-8")
    document = _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)
    if not isinstance(document, dict) or "runs" not in document:
        raise ParseError(f"{path} has no runs", hint="write sources:, models: and runs: at its top")
    table = cast(dict[str, Any], document)
    return PublishedFile(
        table.get("sources") or {},
        table.get("models") or {},
        tuple(_row(path, n, fields) for n, fields in enumerate(table["runs"] or (), start=1)),
    )


def _parse_json(path: Path, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ParseError(f"{path} is not JSON: {error}", hint="check the file") from error


def _parse_yaml(path: Path, text: str) -> object:
    try:
        import yaml  # an optional extra: the shipped rows do without
    except ImportError as error:
        raise MissingExtraError("reading YAML needs PyYAML", hint=install("validate")) from error
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ParseError(f"{path} is not YAML: {error}", hint="check the file") from error


def _row(path: Path, number: int, fields: object) -> PublishedRun:
    if not isinstance(fields, dict):
        raise ParseError(f"run {number} of {path} must be a table", hint="write `- {id: ..., ...}`")
    missing = [name for name in _NEEDED if name not in fields]
    if missing:
        raise ParseError(
            f"run {number} of {path} has no {missing[0]}", hint=f"a run has {', '.join(_NEEDED)}"
        )
    return PublishedRun(cast(Fields, fields))


@lru_cache(maxsize=1)
def shipped_rows() -> PublishedFile:
    """The published measurements that ship with the package."""
    files = [read_rows(path) for path in SHIPPED]
    models = {k: v for one in reversed(files) for k, v in one.models.items()}  # the first file's
    sources = {k: v for one in files for k, v in one.sources.items()}
    return PublishedFile(sources, models, tuple(row for one in files for row in one.runs))


@lru_cache(maxsize=8)
def read_facts(name: str) -> Mapping[str, Fields]:
    """A table of facts of this folder: `models` or `sources`."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
