"""Conversations: sessions whose next turn is sent when the answer is there and a while has passed.

In: when sessions begin, how many turns they have, tokens of each turn and answer, and the seconds
in between, of a tool or a reader. Out: the first turn of each as an `Arrival`, with the others
behind it. The prompt of a turn is all prompts and answers before it, then its own tokens.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from rooflight.errors import ParseError
from rooflight.plan.serving.simulate.arrivals import Arrival, Lengths, parse_lengths
from rooflight.units import parse_seconds

_TIME = re.compile(r"(?<![~\d])(?<!\d\.)\d+(?:\.\d+)?(?:ms|s)?")  # but no variation
_MS = 1e-3  # in which times between turns are drawn


def parse_think(text: str, *, what: str) -> Lengths:
    """Reads a time or a distribution of times, in milliseconds: `5s`, `5s~1`, `1s..9s`, `exp:5s`.

    >>> parse_think("0.5s~2", what="--think")
    Lengths(kind='lognormal', mean=500.0, variation=2.0, low=1, high=1)
    """
    try:
        in_ms = _TIME.sub(lambda time: f"{parse_seconds(time[0]) / _MS:.0f}", text)
        return parse_lengths(in_ms, what=what)
    except ParseError:
        raise ParseError(
            f"{what} {text!r} is not a time from 1 ms to 10,000 s, or a distribution",
            hint=f"write {what} 5s, 5s~1 (mean~variation), 1s..30s or exp:5s",
        ) from None


def with_turns(
    sessions: Iterable[Arrival],
    input: Lengths,
    output: Lengths,
    *,
    turns: Lengths,
    think: Lengths | None,
    seed: int,
) -> Iterator[Arrival]:
    """Each session with its further turns, drawn at random; no `think` sends them at once.

    >>> two, five = Lengths("fixed", 2), Lengths("fixed", 5)
    >>> sessions = [Arrival(1.0, 100, 8)]
    >>> first = next(with_turns(sessions, five, five, turns=two, think=None, seed=0))
    >>> first.input_tokens, first.then.input_tokens
    (100, 113)
    """
    random = np.random.default_rng((seed, 1))
    for number, first in enumerate(sessions):
        count = int(turns.draw(random, 1)[0])
        new, made = input.draw(random, count - 1), output.draw(random, count - 1)
        waits = think.draw(random, count - 1) * _MS if think else np.zeros(count - 1)
        made = np.insert(made, 0, first.output_tokens)
        prompts = first.input_tokens + np.cumsum(np.insert(new + made[:-1], 0, 0))
        then: Arrival | None = None
        drawn = zip([first.time_s, *waits.tolist()], prompts.tolist(), made.tolist(), strict=True)
        for turn, (time_s, prompt, answer) in reversed([*enumerate(drawn, start=1)]):
            then = first._replace(
                time_s=time_s,
                input_tokens=prompt,
                output_tokens=answer,
                session=number,
                turn=turn,
                then=then,
            )
        assert then is not None
        yield then
