"""A slow simulator, one step at a time, of the rules written in `rooflight.batching`.

It shares no code with the scheduler: lists that are searched and sorted, blocks as objects.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol


class Cost(Protocol):
    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float: ...


@dataclass(eq=False)
class Block:
    key: int | None = None
    owners: int = 0


@dataclass(eq=False)
class Job:
    number: int
    arrival: float
    prompt: int
    output: int
    keys: list[int]
    priority: int
    made: int = 0  # tokens
    cached: int = 0  # tokens in the cache
    target: int = 0  # tokens to cache before it decodes
    blocks: list[Block] = field(default_factory=list["Block"])
    hits: int = 0
    ready: bool = False  # its KV comes with it
    entered: int = 0  # in order of entering this server
    first: float | None = None
    end: float | None = None
    was_refused: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.entered

    @property
    def decodes(self) -> bool:
        return bool(self.blocks) and self.cached >= self.target


class Server:
    def __init__(
        self,
        cost: Cost,
        *,
        rows: int,
        budget: int,
        blocks: int,
        size: int,
        waiting: int,
        policy: str,
    ) -> None:
        self.cost, self.rows, self.budget = cost, rows, budget
        self.size, self.policy, self.max_waiting = size, policy, waiting
        self.all_blocks = [Block() for _ in range(blocks)]
        self.free = list(self.all_blocks)  # longest free first
        self.spare = blocks // 100
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.now = 0.0
        self.batch_open = True
        self.entered = 0
        self.done: list[Job] = []
        self.preemptions = 0

    def enter(self, job: Job) -> bool:
        if job.prompt + job.output - 1 > len(self.all_blocks) * self.size:
            return False
        if len(self.waiting) >= self.max_waiting:
            return False
        self.entered += 1
        job.entered = self.entered
        self.waiting.append(job)
        return True

    def run_until(self, time: float) -> None:
        while self.now < time and (self.waiting or self.running):
            self.step()
        if time < float("inf"):
            self.now = max(self.now, time)

    def head(self) -> Job | None:
        return min(self.waiting, key=lambda j: j.rank, default=None)

    def blocks_of(self, tokens: int) -> int:
        return int(-(Fraction(-tokens, self.size) // 1)) if tokens else 0

    def take(self, count: int) -> list[Block]:
        taken = [self.free.pop(0) for _ in range(count)]
        for block in taken:
            block.key, block.owners = None, 1
        return taken

    def give_back(self, job: Job) -> None:
        # blocks that nobody could share first, from the end; then the rest, from the end
        for block in job.blocks[::-1]:
            block.owners -= 1
            if block.owners == 0:
                self.free.append(block)
        job.blocks, job.hits, job.cached = [], 0, 0

    def find(self, keys: list[int]) -> list[Block]:
        found: list[Block] = []
        for key in keys:
            same = [b for b in self.all_blocks if b.key == key]
            if not same:
                break
            found.append(same[0])
        return found

    def try_admit(self, job: Job) -> bool:
        if self.policy == "static":
            if not self.running:
                self.batch_open = True
            if not self.batch_open:
                return False
        if len(self.running) == self.rows:
            return False
        tokens = job.prompt + job.made - (1 if job.ready else 0)
        hits = [] if job.ready else self.find(job.keys[: (tokens - 1) // self.size])
        need = -(-tokens // self.size) - len(hits)
        left = [b for b in self.free if b not in hits]
        if need + (self.spare if self.running else 0) > len(left):
            return False
        for block in hits:
            block.owners += 1
            if block in self.free:
                self.free.remove(block)
        job.blocks = hits + self.take(need)
        job.target = tokens
        job.cached = len(hits) * self.size
        self.waiting.remove(job)
        self.running.append(job)
        return True

    def publish(self, job: Job) -> None:
        for key, block in zip(job.keys[: job.cached // self.size], job.blocks, strict=False):
            if block.key is None and all(b.key != key for b in self.all_blocks):
                block.key = key

    def step(self) -> None:
        while (head := self.head()) and head.ready and self.try_admit(head):
            head.ready, head.cached = False, head.target
            self.publish(head)
        chunks: list[tuple[Job, int]] = []
        decoders: list[Job] = []
        if self.policy == "continuous":
            made_room = self.make_room()
            decoders = [j for j in self.running if j.decodes]
            if not made_room:
                chunks = self.chunks(self.budget - len(decoders))
        else:
            chunks = self.whole()
            if not chunks:
                self.make_room()
                decoders = [j for j in self.running if j.decodes]
                if self.policy == "static" and self.running:
                    self.batch_open = False
        attended = sum(sum(j.cached + i + 1 for i in range(n)) for j, n in chunks)
        self.now += self.cost.seconds(
            decode_rows=len(decoders),
            kv_tokens=sum(j.cached + 1 for j in decoders),
            prefill_tokens=sum(n for _, n in chunks),
            prefill_kv_tokens=attended,
        )
        for job in decoders:
            job.cached += 1
            job.target = job.cached
            job.made += 1
        for job, tokens in chunks:
            job.cached += tokens
            self.publish(job)
            if job.cached == job.target:
                job.made += 1
                job.first = self.now if job.first is None else job.first
        prefilled = [job for job, _ in chunks]
        ended = [j for j in self.running if j.made == j.output and j.decodes]
        # decoders leave first, by rank; then prompts whose first token was all, in order
        ended.sort(key=lambda j: (j in prefilled, prefilled.index(j) if j in prefilled else j.rank))
        for job in ended:
            job.end = self.now
            self.running.remove(job)
            self.give_back(job)
            self.done.append(job)

    def make_room(self) -> bool:
        preempted = False
        wanting = [j for j in self.running if j.decodes and j.cached == len(j.blocks) * self.size]
        for job in sorted(wanting, key=lambda j: j.rank):
            while not self.free and job in self.running:
                victim = max(self.running, key=lambda j: j.rank)
                self.running.remove(victim)
                self.give_back(victim)
                self.waiting.append(victim)
                self.preemptions += 1
                preempted = True
            if job in self.running:
                job.blocks += self.take(1)
        return preempted

    def chunks(self, budget: int) -> list[tuple[Job, int]]:
        found: list[tuple[Job, int]] = []
        for job in [j for j in self.running if not j.decodes]:
            found.append((job, min(budget, job.target - job.cached)))
            budget -= found[-1][1]
        while budget and (head := self.head()) and not head.ready and self.try_admit(head):
            found.append((head, min(budget, head.target - head.cached)))
            budget -= found[-1][1]
        return found

    def whole(self) -> list[tuple[Job, int]]:
        found: list[tuple[Job, int]] = []
        budget = self.budget
        while (head := self.head()) and not head.ready:
            if found and head.prompt + head.made > budget:
                break
            if not self.try_admit(head):
                break
            found.append((head, head.target - head.cached))
            budget -= found[-1][1]
        return found
