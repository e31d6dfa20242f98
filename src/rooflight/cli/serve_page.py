"""What `rooflight serve` prints when it starts: the limits, and where they come from."""

from dataclasses import asdict, dataclass

from rooflight.batching.request import Limits
from rooflight.serve.http.waiting_limit import WaitingLimit
from rooflight.ui.text.table import table
from rooflight.units import format_seconds


@dataclass(frozen=True, slots=True)
class ServePage:
    """A server's sizes."""

    name: str
    limits: Limits
    max_tokens: int
    waiting: WaitingLimit


def text(page: ServePage) -> str:
    limits, waiting = page.limits, page.waiting
    step = "how long a full step takes is unknown: give --on"
    if waiting.step_seconds is not None:
        step = f"a full step takes {format_seconds(waiting.step_seconds)}, predicted"
    pool = f"{limits.num_blocks} blocks of {limits.block_tokens}"
    rows = [
        ["running requests", f"{limits.max_rows:,}", "rows of a step"],
        ["tokens of a request", f"{page.max_tokens:,}", "prompt and text"],
        ["tokens of KV cache", f"{limits.pool_tokens:,}", pool],
        *_kept(limits),
        ["tokens of a step", f"{limits.max_step_tokens:,}", step],
        ["waiting requests", f"{limits.max_waiting:,}", "the next gets 429"],
        ["waiting tokens", f"{waiting.max_waiting_tokens:,}", waiting.because],
    ]
    return f"{page.name}\n\n{table(('limit', 'value', 'because'), rows, align='lrl')}"


def _kept(limits: Limits) -> list[list[str]]:
    if not limits.host_blocks:
        return []
    tokens = limits.host_blocks * limits.block_tokens
    return [["tokens of CPU KV offload", f"{tokens:,}", "cached prefixes, once evicted"]]


def document(page: ServePage) -> dict[str, object]:
    return {
        "name": page.name,
        "max_model_tokens": page.max_tokens,
        "limits": {**asdict(page.limits), "policy": str(page.limits.policy)},
        "waiting": asdict(page.waiting),
    }
