"""What a step was worth: tokens a second, MFU by every convention, and TensorBoard's file of it."""

import time
from typing import Any, cast

from rooflight.graph import CONVENTIONS, model_graph
from rooflight.train.run import Run
from rooflight.train.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class Metrics:
    """Of one run; a step's facts go in, the same with its rates come out."""

    def __init__(self, run: Run, device_kind: str) -> None:
        plan = run.plan
        on = plan.placed().slice
        self._tokens = plan.tokens
        graph = model_graph(plan.model)
        # On anything but the chip of the plan its peak says nothing.
        peak = on.chip.peak_flops(plan.dtype) if "TPU" in device_kind else None
        self._peak = peak * on.num_chips if peak else None
        self._flops = {c.name: c.flops_per_token(graph, plan.seq) for c in CONVENTIONS}
        self._writer = SummaryWriter(run.folder / FOLDER)

    def step(self, facts: dict[str, Any]) -> dict[str, Any]:
        rate = self._tokens / cast(float, facts["seconds"])
        found: dict[str, Any] = {"tokens_per_s": rate}
        if self._peak is not None:
            found["mfu"] = {name: rate * flops / self._peak for name, flops in self._flops.items()}
        scalars = {"loss": facts["loss"], "tokens_per_s": rate}
        scalars |= {f"mfu/{name}": value for name, value in found.get("mfu", {}).items()}
        self._writer.write(facts["step"], scalars, time.time())
        return {**facts, **found}

    def close(self) -> None:
        self._writer.close()
