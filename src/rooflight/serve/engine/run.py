"""`Engine`: jobs in, tokens out, a step at a time. No thread, and nothing depends on a clock.

    add -> Scheduler.schedule -> Device.generate, Device.prefill -> Found.read -> Delta

The host is one step ahead of what it has read: a step is dispatched before the tokens of the one
before are read, which stay on the device as its input. So a text that ends at a stop token has run
one step too far, and what that step made of it is dropped. A grammar, and draft tokens,
need to know the tokens so far: with them the engine reads each step before the next.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rooflight.batching.request import Admission, Request
from rooflight.batching.scheduler import Scheduler
from rooflight.batching.step_batch import PrefillChunk, StepBatch, TableWrite
from rooflight.errors import UsageError
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.device import Device, Ints, PendingResult, Tile
from rooflight.serve.engine.host_blocks import HostBlocks
from rooflight.serve.engine.request import Delta, EngineRequest, Finish, Mask, TokenLogprobs
from rooflight.serve.engine.running import RunningRequest
from rooflight.serve.engine.stats import EngineStats, TokenCounts, stats_of

# Log probabilities from the numbers of a row, as `step_function` packs them.


def logprobs_of(values: Ints, count: int) -> TokenLogprobs:
    """Those of the token that was drawn, and of the `count` likeliest."""
    chances = values.view(np.float32)
    num_top = (len(values) - 2) // 2
    tokens: list[int] = values[2 : 2 + count].tolist()
    top: list[float] = chances[2 + num_top : 2 + num_top + count].tolist()
    return TokenLogprobs(float(chances[1]), dict(zip(tokens, top, strict=True)))


class _Dispatched(NamedTuple):
    """A call that is on its way, and whose token each line of its result is."""

    found: PendingResult
    lines: Sequence[tuple[int, RunningRequest]]
    draft: Sequence[Sequence[int]] = ()  # of each line, if the call checked any


class Engine:
    """The jobs of one replica and the device that computes them."""

    def __init__(self, program: Program, params: Tree, config: EngineConfig) -> None:
        self.config = config
        self.device = Device(program, params, config)
        self.scheduler = Scheduler(config.limits)
        self._vocab = program.model.vocab
        self._sequences: dict[int, RunningRequest] = {}
        self._by_row: dict[int, RunningRequest] = {}
        self._pending: list[_Dispatched] = []
        self._deltas: list[Delta] = []  # of the step at hand
        self._num_guided = 0  # jobs with a grammar
        self._guided_rows: set[int] = set()  # where the device has a mask
        self._compilations_when_warm = 0
        self._counts = TokenCounts()
        self._drafter: Device | None = None  # a draft model
        self._host = HostBlocks(self.device)

    # What goes in

    def warm(self) -> None:
        """Compiles everything; nothing is compiled after."""
        self.device.warm()
        if self._drafter is not None:
            self._drafter.warm(is_drafter=True)
        self._compilations_when_warm = self._num_compilations

    def draft_with(self, program: Program, params: Tree) -> None:
        """Lets a smaller model propose tokens, in place of what a text has said before.

        Its keys and values lie in blocks of the same numbers, so the scheduler knows one cache.
        """
        if program.model.vocab != self._vocab or not self.config.num_draft:
            raise UsageError(
                f"{program.model.name} with {program.model.vocab} tokens cannot propose"
                f" {self.config.num_draft} of {self._vocab}",
                hint="take a smaller model of the same family, and propose at least one token",
            )
        sizes = replace(self.config, cache_dtype=None, moves_blocks=False, host_blocks=0, spread=())
        self._drafter = Device(program, params, sizes)

    def check(self, job: EngineRequest) -> Admission:
        """Whether a job can ever run; raises if it is not one."""
        return self.config.check(job, self._vocab)

    def add(self, job: EngineRequest) -> Admission:
        """Queues a job, or says why not."""
        return self._admit(job, self.scheduler.add)

    def _admit(self, job: EngineRequest, enqueue: Callable[[Request], Admission]) -> Admission:
        found = self.check(job)
        if found is not Admission.ADMITTED:
            return found
        text = RunningRequest(job, self.config.block_tokens, speculates=self._looks_back)
        found = enqueue(text.request)
        if found is Admission.ADMITTED:
            self._sequences[job.id] = text
            self._num_guided += job.allowed is not None
        return found

    def cancel(self, id: int) -> Delta | None:
        """Drops a job at once; None if it is not here, or already done."""
        text = self._sequences.get(id)
        if text is None:
            return None
        self.scheduler.cancel(id)
        return self._end(text, Finish.CANCELLED)

    # What comes out

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or self.scheduler.num_requests > 0

    @property
    def ids(self) -> list[int]:
        """Of the jobs that are here."""
        return list(self._sequences)

    def step(self) -> list[Delta]:
        """Dispatches the next step, then reads the tokens of the one before."""
        batch = self.scheduler.schedule()
        before, self._pending = self._pending, []
        self._dispatch(batch)
        self.scheduler.commit()
        self._read(before)
        if self._num_guided or self.config.num_draft:
            before, self._pending = self._pending, []
            self._read(before)
        return self._take_deltas()

    def recover(self, error: str) -> list[Delta]:
        """After a step that raised: ends all that ran with `FAILED`, and empties the device."""
        self._pending = []
        for device in self._devices:
            device.reset()
        self._guided_rows.clear()
        self._host.clear()
        self.scheduler.abort()
        lost = [t for t in self._sequences.values() if t.job.id not in self.scheduler]
        return self._take_deltas() + [self._end(text, Finish.FAILED, error) for text in lost]

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def stats(self) -> EngineStats:
        compilations = self._num_compilations - self._compilations_when_warm
        return stats_of(self.scheduler, self._counts, compilations)

    @property
    def _num_compilations(self) -> int:
        return sum(device.num_compilations for device in self._devices)

    @property
    def _devices(self) -> Sequence[Device]:
        """Those with a cache: of the model, and of a draft model."""
        return (self.device,) if self._drafter is None else (self.device, self._drafter)

    @property
    def _looks_back(self) -> bool:
        """Whether draft tokens are what a text has said before."""
        return self.config.num_draft > 0 and self._drafter is None

    # Inside a step

    def _dispatch(self, batch: StepBatch) -> None:
        self._write_tables(batch.writes)
        for chunk in batch.chunks:
            self._open(chunk)
            text = self._by_row[chunk.row]
            if chunk.is_last and text.job.sampling.adjusts:
                known = text.tokens[: chunk.start + chunk.tokens]
                prompt, sampling = len(text.job.prompt), text.job.sampling
                self.device.adjust(chunk.row, sampling, prompt, known)
        if self._num_guided or self._guided_rows:
            self._guide(batch)
        if batch.decode_rows:
            self._generate(batch.decode_rows)
        if batch.chunks:
            self._prefill(batch.chunks)

    def _open(self, chunk: PrefillChunk) -> None:
        """Gives a text the row that the scheduler chose for it."""
        text = self._sequences[chunk.id]
        self._seat(chunk.row, text)
        if text.cached is None:
            text.began = time.monotonic()
            self._counts.prefix_queries += len(text.job.prompt)
            self._count_prompt(text, chunk.start)

    def _seat(self, row: int, text: RunningRequest) -> None:
        self._by_row[row] = text
        for device in self._devices:
            device.open_row(row, text.job.sampling, text.job.logprobs)

    def _write_tables(self, writes: Iterable[TableWrite]) -> None:
        """What new blocks held is moved before they are used."""
        tier = self.scheduler.room.tier
        if tier is not None and tier.moves:
            self._host.follow(tier.take_moves())
        for write in writes:
            for device in self._devices:
                device.write_table(*write)

    def _count_prompt(self, text: RunningRequest, cached: int) -> None:
        text.cached = cached
        self._counts.prompt_tokens += len(text.job.prompt)

    def _guide(self, batch: StepBatch) -> None:
        """Tells the device what the rows that follow a grammar may draw in this step."""
        rows = [*batch.decode_rows, *(c.row for c in batch.chunks if c.is_last)]
        masks: list[tuple[int, Mask | None]] = []
        for row in rows:
            allowed = self._by_row[row].job.allowed
            if allowed is not None or row in self._guided_rows:
                masks.append((row, None if allowed is None else allowed.mask()))
                (self._guided_rows.discard if allowed is None else self._guided_rows.add)(row)
        if masks:
            self.device.allow(masks)

    def _generate(self, rows: Sequence[int]) -> None:
        sequences = [self._by_row[row] for row in rows]
        starts = [t.length - 1 for t in sequences]
        draft = self._draft(rows, sequences, starts) if self.config.num_draft else ()
        if any(draft):
            given = [[t.tokens[-1], *more] for t, more in zip(sequences, draft, strict=True)]
            found = self.device.score_draft(rows, starts, given)
        else:
            found, draft = self.device.generate(rows, starts), ()
        for text in sequences:
            text.length += 1
        self._pending.append(_Dispatched(found, list(enumerate(sequences)), draft))

    def _draft(
        self, rows: Sequence[int], sequences: Sequence[RunningRequest], starts: Sequence[int]
    ) -> list[list[int]]:
        """Guesses for each row, as many as there are blocks for."""
        most, drafter = self.config.num_draft, self._drafter
        if drafter is None:
            draft = [text.propose(most) for text in sequences]
            return [d[: self._reserve(row, len(d))] for row, d in zip(rows, draft, strict=True)]
        pairs = zip(rows, sequences, strict=True)
        rooms = [self._reserve(row, text.num_more(most)) for row, text in pairs]
        found = drafter.draft(rows, starts, [t.tokens[-1] for t in sequences], rooms).read()
        return [line[:room].tolist() for line, room in zip(found, rooms, strict=False)]

    def _reserve(self, row: int, wanted: int) -> int:
        """Blocks for so many draft tokens of a row, or for as many as there can be."""
        if not wanted:
            return 0
        self._write_tables(self.scheduler.reserve(row, wanted))
        return min(wanted, self.scheduler.room_of(row))

    def _prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Cuts chunks into tiles, and tiles into calls."""
        size, most = self.config.tile_tokens, self.config.tile_counts[-1]
        tiles = [tile for chunk in chunks for tile in self._tiles(chunk, size)]
        for at in range(0, len(tiles), most):
            some = tiles[at : at + most]
            found = self.device.prefill(some)
            if self._drafter is not None:
                self._drafter.prefill(some)
            lines = [(i, self._by_row[t.row]) for i, t in enumerate(some) if t.is_last]
            if lines:
                self._pending.append(_Dispatched(found, lines))
            for _, text in lines:
                text.length += 1

    def _tiles(self, chunk: PrefillChunk, size: int) -> Iterable[Tile]:
        tokens, end = self._sequences[chunk.id].tokens, chunk.start + chunk.tokens
        for start in range(chunk.start, end, size):
            stop = min(start + size, end)
            is_last = chunk.is_last and stop == end
            yield Tile(chunk.row, start, tokens[start:stop], is_last)

    # What was read

    def _read(self, dispatched: Sequence[_Dispatched]) -> None:
        """Waits for the tokens of a step; those of a text that ended meanwhile are dropped."""
        for found, lines, draft in dispatched:
            values = found.read()
            for line, text in lines:
                if text.finish is None:
                    some = draft[line] if draft else ()
                    self._deltas.append(self._take(text, values[line], some))

    def _take(self, text: RunningRequest, values: Ints, draft: Sequence[int]) -> Delta:
        """The next tokens of a text, one more than accepted, and whether they were the last."""
        lines = np.atleast_2d(values)
        drawn: list[int] = lines[: len(draft) + 1, 0].tolist()
        num = 1 + next((i for i, t in enumerate(draft) if t != drawn[i]), len(draft))
        if draft:
            self._accept(text, num - 1, len(draft))
        wanted = lines[:num] if text.job.logprobs else ()
        return self._gain(text, drawn[:num], [logprobs_of(x, text.job.logprobs) for x in wanted])

    def _gain(
        self, text: RunningRequest, drawn: Sequence[int], found: Sequence[TokenLogprobs]
    ) -> Delta:
        """More tokens for a text, up to the one that ends it."""
        job, keys, finish, tokens = text.job, list[bytes](), None, list[int]()
        for token in drawn:
            tokens.append(token)
            keys += text.append(token)
            finish = self._finish(text, token)
            if finish is not None:
                break
        if keys and job.id in self.scheduler:
            self.scheduler.extend_keys(job.id, keys)
        self._counts.generated_tokens += len(tokens)
        began = None if text.is_reported else text.began
        cached = text.report_cached()
        if finish is not None:
            self.scheduler.cancel(job.id)  # unless it is done there, too
            self._end(text, finish)
        logprobs = tuple(found[: len(tokens)])
        return Delta(job.id, tuple(tokens), logprobs, finish, cached, began=began)

    def _accept(self, text: RunningRequest, accepted: int, draft_tokens: int) -> None:
        self._counts.draft_tokens += draft_tokens
        self._counts.accepted_tokens += accepted
        text.length += accepted
        self.scheduler.accept(text.job.id, accepted)

    def _finish(self, text: RunningRequest, token: int) -> Finish | None:
        """Whether a text ends with this token."""
        job = text.job
        is_complete = job.allowed is not None and not job.allowed.accept(token)
        if token in job.stop_tokens or is_complete:
            return Finish.STOP
        return Finish.LENGTH if text.num_made == job.max_new_tokens else None

    def _end(self, text: RunningRequest, finish: Finish, error: str = "") -> Delta:
        text.finish = finish
        del self._sequences[text.job.id]
        self._num_guided -= text.job.allowed is not None
        return Delta(text.job.id, finish=finish, cached_tokens=text.report_cached(), error=error)
