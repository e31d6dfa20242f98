"""`FairQueue`: by which keys share the queue and the engine evenly, whichever key sends more.

Start-time fair queueing: the work of a key is laid end to end on its own line, and the engine takes
the earliest start. A key that floods only pushes its own work back; one that was idle starts at
the present. Tokens are counted, so long prompts weigh more.

Room goes by dynamic thresholds (`Shares`): of waiting tokens, waiting requests and open ones a key
may have as many as are still free. One that floods gets half, two get a third each, and there is
always room for another.
"""

from collections import Counter


class Shares:
    """What keys hold of something that there is only so much of."""

    __slots__ = ("_held", "_most")

    def __init__(self, most: float) -> None:
        self._most = most
        self._held = Counter[str]()  # keys are few

    def may_enter(self, key: str, amount: int = 1) -> bool:
        """The first of a key always may, however large."""
        held = self._held[key]
        return held == 0 or held + amount <= self._most - self._held.total()

    def enter(self, key: str, amount: int = 1) -> None:
        self._held[key] += amount

    def leave(self, key: str, amount: int = 1) -> None:
        self._held[key] -= amount


class FairQueue:
    """The virtual time of an engine in tokens, and what of each key waits."""

    __slots__ = ("_ends", "_now", "_requests", "_tokens")

    def __init__(self, max_waiting_tokens: float, max_waiting: float) -> None:
        self._tokens, self._requests = Shares(max_waiting_tokens), Shares(max_waiting)
        self._ends = Counter[str]()
        self._now = 0

    def enter(self, key: str, prompt_tokens: int, requests: int = 1) -> bool:
        """Whether prompts may wait; the first of a key always may, if the engine has room."""
        may = self._tokens.may_enter(key, prompt_tokens)
        if may := may and self._requests.may_enter(key, requests):
            self._tokens.enter(key, prompt_tokens)
            self._requests.enter(key, requests)
        return may

    def leave(self, key: str, prompt_tokens: int) -> None:
        """A prompt that waits no more."""
        self._tokens.leave(key, prompt_tokens)
        self._requests.leave(key)

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
