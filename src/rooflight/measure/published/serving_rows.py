"""Measured serving rows: engines on GPUs, a time per token and a time to the first one each.

In: a file with the columns of the aiconfigurator project's silicon data. Out: `ServingRow`s.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import ParseError

_NEEDED = (
    *("id", "silicon_data_source", "backend", "backend_version", "model_path", "system"),
    *("precision", "mode", "isl", "osl", "gemm_quant_mode", "moe_quant_mode", "batch_size"),
    *("tp_size", "silicon_ttft_ms", "silicon_tpot_ms"),
)
# The same network, or the same but for how its weights are stored.
_FAMILIES = {
    "DeepSeek-V3": "DeepSeek-R1",
    "DeepSeek-R1-NVFP4": "DeepSeek-R1",
    "DeepSeek-V3.1-NVFP4": "DeepSeek-R1",
    "Qwen3-32B-NVFP4": "Qwen3-32B",
    "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B-Instruct",
}
_SOURCES = {"db-dump": "inferencex-db", "aic-auto-gap": "aiconfigurator"}
_SPLITS = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One measurement; what the file says, by column."""

    fields: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.fields.get(name) or ""

    def number(self, name: str) -> int:
        """0 where the file says nothing."""
        return int(self._float(name))

    def _float(self, name: str) -> float:
        stated = self.text(name) or "0"
        try:
            value = float(stated)
        except ValueError as error:
            raise ParseError(f"{name} of {self.id} is {stated!r}", hint="a number") from error
        if not 0 <= value < 1e9:
            raise ParseError(f"{name} of {self.id} is {stated}", hint="between 0 and 1e9")
        return value

    @property
    def id(self) -> str:
        return self.text("id")

    @property
    def model(self) -> str:
        """The network, without its owner and its quantisation."""
        name = self.text("model_path").rpartition("/")[2]
        return _FAMILIES.get(name, name)

    @property
    def engine(self) -> str:
        return self.text("backend")

    @property
    def chip(self) -> str:
        return self.text("system")

    @property
    def is_disaggregated(self) -> bool:
        """Prompts are computed by other workers than those that generate."""
        return self.text("mode") == "disagg"

    @property
    def source(self) -> str:
        """Who measured: InferenceX by its database or its pages, aiconfigurator, or by name."""
        stated = self.text("silicon_data_source")
        other = "inferencex" if "=" in stated else stated
        return next((name for key, name in _SOURCES.items() if key in stated), other)

    @property
    def concurrency(self) -> int:
        """Requests that clients keep open, over all workers; 0 where the file says nothing."""
        found = re.search(r"silicon_concurrency=(\d+)", self.text("silicon_data_source"))
        return int(found[1]) if found else 0

    @property
    def measured_on(self) -> str:
        found = re.search(r"measured=(\d{4}-\d\d-\d\d)", self.text("silicon_data_source"))
        return found[1] if found else ""

    @property
    def tpot_s(self) -> float:
        return self._float("silicon_tpot_ms") / 1e3

    @property
    def ttft_s(self) -> float:
        return self._float("silicon_ttft_ms") / 1e3

    @property
    def configuration(self) -> str:
        """What was run but for the load: all concurrencies, all dates and sources share it."""
        sides = ("prefill_", "decode_") if self.is_disaggregated else ("",)
        split = [self.text(side + name) for side in sides for name in _SPLITS]
        kept = ("system", "backend", "gemm_quant_mode", "moe_quant_mode", "mode", "isl", "osl")
        return "|".join([self.model, *(self.text(name) for name in kept), *split])


def read_serving_rows(path: Path) -> tuple[ServingRow, ...]:
    """Reads the CSV; every column that predictions need must be there."""
    if not path.is_file():
        raise ParseError(f"{path} is not a file", hint="give a CSV of measured serving rows")
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        missing = [name for name in _NEEDED if name not in (table.fieldnames or ())]
        if missing:
            raise ParseError(
                f"{path} has no column {missing[0]}", hint=f"it needs {', '.join(_NEEDED)}"
            )
        return tuple(ServingRow(fields) for fields in table)
