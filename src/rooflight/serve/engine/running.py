"""`RunningRequest`: a job in an engine, with the tokens that it has so far."""

from collections.abc import Sequence

from rooflight.batching.prefix import KeyChain
from rooflight.batching.request import Request
from rooflight.serve.engine.request import EngineRequest, Finish

# `PromptLookup`: proposes the next tokens of a text from what it has said before.

_LENGTHS = (3, 2)  # tokens that are looked up, the longest match first


class PromptLookup:
    """An index of one text, kept up as it grows."""

    __slots__ = ("_after", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # some tokens -> where the next one stands

    def extend(self, tokens: Sequence[int]) -> None:
        """More of the text. The last tokens are not indexed until something follows them."""
        for token in tokens:
            at = len(self._tokens)
            for length in _LENGTHS:
                if at >= length:
                    self._after[tuple(self._tokens[at - length : at])] = at
            self._tokens.append(token)

    def propose(self, count: int) -> list[int]:
        """At most `count` tokens that may come next.

        >>> lookup = PromptLookup()
        >>> lookup.extend([7, 1, 2, 3, 4, 9, 1, 2])
        >>> lookup.propose(2)
        [3, 4]
        """
        end = len(self._tokens)
        for length in _LENGTHS:
            at = self._after.get(tuple(self._tokens[end - length :])) if end >= length else None
            if at is not None:
                return self._tokens[at : at + count]
        return []


class RunningRequest:
    """A prompt and what was made of it; the scheduler's request is counted off it."""

    __slots__ = (
        "_is_alone",
        "began",
        "cached",
        "chain",
        "finish",
        "is_reported",
        "job",
        "keys",
        "length",
        "lookup",
        "tokens",
    )

    def __init__(self, job: EngineRequest, block_tokens: int, *, speculates: bool) -> None:
        self.job = job
        self._is_alone = job.allowed is not None or job.sampling.adjusts  # token by token
        self.lookup = PromptLookup() if speculates and not self._is_alone else None
        if self.lookup is not None:
            self.lookup.extend(job.prompt)
        self.tokens = list(job.prompt)
        self.chain = KeyChain(block_tokens=block_tokens, salt=job.salt)
        self.keys: list[bytes] = self.chain.extend(job.prompt)
        self.length = len(job.prompt)  # with tokens that the device has made and nobody has read
        self.finish: Finish | None = None
        self.cached: int | None = None  # prompt tokens that were in the prefix cache
        self.began: float | None = None  # when it got its first row
        self.is_reported = False  # whether a delta has said so

    @property
    def num_made(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def request(self) -> Request:
        """What is left to do, what was made counted as prompt."""
        job = self.job
        left = job.max_new_tokens - self.num_made
        return Request(job.id, len(self.tokens), left, tuple(self.keys), job.priority)

    def append(self, token: int) -> Sequence[bytes]:
        """One more token; the key of the block that it fills."""
        self.tokens.append(token)
        if self.lookup is not None:
            self.lookup.extend((token,))
        keys = self.chain.extend((token,))
        self.keys += keys
        return keys

    def report_cached(self) -> int:
        """What the first delta says of the prefix cache, and 0 in those after it."""
        cached = 0 if self.is_reported or self.cached is None else self.cached
        self.is_reported = True
        return cached

    def num_more(self, most: int) -> int:
        """Tokens that may be guessed, no more than are left to make after one."""
        left = self.job.max_new_tokens - self.num_made - 1
        return 0 if self._is_alone else min(most, left)

    def propose(self, most: int) -> list[int]:
        """Tokens that may come next, from what the text has said before."""
        return [] if self.lookup is None else self.lookup.propose(self.num_more(most))
