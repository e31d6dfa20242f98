"""Log probabilities from the numbers of a row, as `step_function` packs them."""

import numpy as np

from rooflight.engine.device import Ints
from rooflight.engine.request import TokenLogprobs


def logprobs_of(values: Ints, count: int) -> TokenLogprobs:
    """Those of the token that was drawn, and of the `count` likeliest."""
    chances = values.view(np.float32)
    num_top = (len(values) - 2) // 2
    tokens: list[int] = values[2 : 2 + count].tolist()
    top: list[float] = chances[2 + num_top : 2 + num_top + count].tolist()
    return TokenLogprobs(float(chances[1]), dict(zip(tokens, top, strict=True)))
