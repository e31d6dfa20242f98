"""What a person sees of a run: a line that moves, or a line per step where nobody watches."""

import sys
from collections.abc import Mapping

from rooflight.train.run import Run
from rooflight.units import format_count, format_seconds, format_si


class Progress:
    """Shows events as they come, on stderr."""

    def __init__(self, run: Run) -> None:
        self._steps = run.steps
        self._live = sys.stderr.isatty()

    def __call__(self, fact: Mapping[str, object]) -> None:
        text = event_text(fact, self._steps)
        if text is None:
            return
        moves = self._live and fact["event"] == "step"
        print(
            f"\r\x1b[K{text}" if self._live else text,
            end="" if moves else "\n",
            file=sys.stderr,
            flush=True,
        )

    def say(self, text: str) -> None:
        """Words of other hosts and of libraries may hold what a terminal obeys: it is left out."""
        text = "".join(c if c.isprintable() else " " for c in text)
        print(f"\r\x1b[K{text}" if self._live else text, file=sys.stderr, flush=True)


def event_text(fact: Mapping[str, object], steps: int) -> str | None:
    """One event in words; None for what nobody needs to see."""
    step = fact.get("step")
    match fact["event"]:
        case "step":
            rate = format_si(float(str(fact.get("tokens_per_s", 0))), "tokens/s")
            mfu = fact.get("mfu")
            used = f", MFU {mfu['6ND']:.1%} (6ND)" if isinstance(mfu, dict) else ""
            seconds = format_seconds(float(str(fact["seconds"])))
            done = int(str(step)) + 1
            return (
                f"step {format_count(done)} of {format_count(steps)}: loss"
                f" {float(str(fact['loss'])):.4f}{_optimizer(fact)}, {seconds}, {rate}{used}"
            )
        case "validated":
            loss = float(str(fact["loss"]))
            return f"after {format_count(int(str(step)))} steps: validation loss {loss:.4f}"
        case "restored":
            return f"goes on from step {step}"
        case "began":
            return f"begins with {fact.get('weights') or 'new weights'}"
        case "damaged":
            return f"the checkpoint of step {step} is damaged, {fact['reason']}; it is not used"
        case "unfinished":
            return f"the checkpoint of step {step} was not finished, and is not used"
        case "saved":
            return f"saved step {step}"
        case _:
            return None


def _optimizer(fact: Mapping[str, object]) -> str:
    """What the optimizer saw and did, and how many tokens it has seen; of older logs nothing."""
    if "learning_rate" not in fact:
        return ""
    norm, rate, tokens = (
        float(str(fact[name])) for name in ("gradient_norm", "learning_rate", "tokens")
    )
    return f", gradient norm {norm:.3g}, rate {rate:.3g}, {format_si(tokens, 'tokens')}"
