"""`FairQueue`: by which keys share the queue and the engine evenly, whoever sends more.

Start-time fair queueing: the work of a key is laid end to end on its own line, and the engine takes
the earliest start. A key that floods only pushes its own work back; one that was idle starts at
the present. Tokens are counted, so long prompts weigh more.

Room in the queue goes by dynamic thresholds: a key may have as much waiting as is still free. One
that floods gets half of it, two get a third each, and there is always room for another.
"""

from collections import Counter


class FairQueue:
    """The virtual time of an engine in tokens, and what of each key waits."""

    __slots__ = ("_ends", "_max_waiting", "_now", "_waiting")

    def __init__(self, max_waiting_tokens: float) -> None:
        self._max_waiting = max_waiting_tokens
        self._waiting = Counter[str]()  # prompt tokens by key; keys are few
        self._ends = Counter[str]()
        self._now = 0

    def enter(self, key: str, prompt_tokens: int) -> bool:
        """Whether prompts may wait; the first of a key always may, if the engine has room."""
        held = self._waiting[key]
        is_free = held + prompt_tokens <= self._max_waiting - self._waiting.total()
        if is_free or held == 0:
            self._waiting[key] += prompt_tokens
        return is_free or held == 0

    def leave(self, key: str, prompt_tokens: int) -> None:
        """A prompt that waits no more."""
        self._waiting[key] -= prompt_tokens

    def place(self, key: str, tokens: int) -> int:
        """The priority of a job of this many tokens: smaller goes first."""
        start = max(self._now, self._ends[key])
        self._ends[key] = start + tokens
        return start

    def give_back(self, key: str, tokens: int) -> None:
        """Work that was placed and not done after all."""
        self._ends[key] -= tokens

    def started(self, priority: int) -> None:
        """A job got its first token: the present is not before its start."""
        self._now = max(self._now, priority)
