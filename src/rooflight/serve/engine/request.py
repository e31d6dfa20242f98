"""What goes into an engine and what comes out: `EngineRequest`s, and `Delta`s, both of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

Mask = np.ndarray[Any, np.dtype[np.bool_]]  # [vocab]
MOST_BIASES = 300  # tokens of one job


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a job draws its tokens; the same seed draws the same text in any batch."""

    temperature: float = 0.0  # 0 takes the largest logit
    top_p: float = 1.0
    top_k: int = 0  # 0 takes all
    seed: int = 0
    min_p: float = 0.0  # of the largest probability; 0 takes all
    presence_penalty: float = 0.0  # off the logit of each token that was made
    frequency_penalty: float = 0.0  # off it for each time
    repetition_penalty: float = 1.0  # divides the logits of tokens that were read or made
    logit_bias: tuple[tuple[int, float], ...] = ()  # added to the logits of tokens

    @property
    def adjusts(self) -> bool:
        """Whether logits depend on the tokens so far, or have a bias."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0) or bool(self.logit_bias)


class Allowed(Protocol):
    """Which tokens may come next, for output that must follow a grammar."""

    def mask(self) -> Mask | None:
        """True for each token that may come next; None if any may."""
        ...

    def accept(self, token: int) -> bool:
        """Takes the token that was drawn; false when the text is complete with it."""
        ...


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prompt to continue."""

    id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = Sampling()
    stop_tokens: frozenset[int] = frozenset()  # the text ends with one of these, which is in it
    logprobs: int = 0  # how many alternatives to report for each token
    salt: bytes = b""  # jobs of different salts never share cached prefixes
    priority: int = 0  # smaller goes first
    allowed: Allowed | None = None


class Finish(StrEnum):
    """Why a text ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


class TokenLogprobs(NamedTuple):
    """The log probability of a token, and those of the likeliest, before temperature."""

    logprob: float
    top: Mapping[int, float]  # token -> log probability, likeliest first


@dataclass(frozen=True, slots=True)
class Delta:
    """What a job gained in a step."""

    id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token, if the job wants them
    finish: Finish | None = None
    cached_tokens: int = 0  # of the prompt, from the prefix cache; in the first delta
    error: str = ""  # what went wrong, with `Finish.FAILED`
    began: float | None = None  # when the prompt was begun, on the monotonic clock; in the first
