"""`Reply`: what came of one streamed request, and when; seconds of `time.perf_counter`."""

from dataclasses import dataclass, field

LONGEST_WORDS = 200  # that are kept of what a server says


@dataclass(slots=True)
class Reply:
    """What came of a request so far."""

    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    finish_s: float = 0.0  # when it was told why the text ends
    chunks: int = 0
    gaps: list[float] = field(default_factory=list[float])  # between chunks: ITL
    input_tokens: int = 0  # as the server counts; 0 if it does not say
    output_tokens: int = 0
    is_done: bool = False
    error: str = ""  # its kind, such as `connect` or `http 429`
    words: str = ""  # and what was said of it

    def chunk(self, now: float) -> None:
        """One more piece of output has come."""
        if self.chunks:
            self.gaps.append(now - self.last_s)
        else:
            self.first_s = now
        self.chunks, self.last_s = self.chunks + 1, now

    def fail(self, error: str, words: object) -> None:
        self.error, self.words = error, str(words)[:LONGEST_WORDS]
