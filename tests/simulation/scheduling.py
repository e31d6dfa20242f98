"""Two schedulers, of which one prefills for the other, and a network between them that loses,
repeats and reorders what they say.

In: a `Story`. Out: nothing, or a violation: a block lost or owned twice, a lease that stays, a
cached prefix of other content, a request that makes too few or too many tokens or none for ever.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from rooflight.batching.disaggregated import DisaggregatedScheduler
from rooflight.batching.kv_offload import TierOp
from rooflight.batching.request import Admission, Key, Limits, Policy, Request

from .story import Story

_MOST_EVENTS = 3000  # far more than any of these schedules needs


class Replica:
    """A scheduler, what is in each of its blocks, and what each request has made."""

    def __init__(self, story: Story, name: str) -> None:
        draw, self.name, self.story = story.draw, name, story
        block_tokens, num_blocks = draw.choice((1, 2, 4)), draw.randint(6, 24)
        chunk = draw.choice((1, 1, 2))
        rows = draw.randint(1, 4)
        policy = Policy.CONTINUOUS if story.happens(0.8) else draw.choice([*Policy])
        self.limits = Limits(
            rows,
            rows + chunk + draw.randint(0, 12),
            num_blocks,
            block_tokens,
            max_waiting=draw.randint(2, 12),
            policy=policy,
            chunk_tokens=chunk,
            host_blocks=draw.choice((0, 0, 3)),
        )
        self.scheduler = DisaggregatedScheduler(self.limits)
        self.requests: dict[int, Request] = {}
        self.made: Counter[int] = Counter()
        self.ended: dict[int, str] = {}
        self.content: dict[int, Key] = {}  # block -> what was computed into it
        self.on_host: dict[Key, Key | None] = {}

    def take(self, verb: str, request: Request, *, made: int = 0) -> bool:
        found = getattr(self.scheduler, verb)(request)
        self.story.tell(
            f"{self.name}: {verb} {request.id}, {request.prompt_tokens} tokens: {found}"
        )
        if found is Admission.ADMITTED:
            self.requests[request.id] = request
            self.made[request.id] = made
        return found is Admission.ADMITTED

    def cancel(self, id: int) -> None:
        if self.scheduler.cancel(id):
            self.story.tell(f"{self.name}: cancel {id}")
            self.ended[id] = "cancelled"

    def abort(self) -> None:
        self.story.tell(f"{self.name}: the device lost its cache")
        before = [id for id in self.requests if id in self.scheduler]
        self.scheduler.abort()
        self.content.clear()
        self.on_host.clear()
        self.ended |= {id: "aborted" for id in before if id not in self.scheduler}

    def step(self) -> None:
        """Schedules, perhaps hears something, commits."""
        scheduler, story = self.scheduler, self.story
        batch = scheduler.schedule()
        tables, bt = scheduler.tables(), self.limits.block_tokens
        self._follow_moves()
        for chunk in batch.chunks:
            keys = self.requests[chunk.id].keys
            for at in range(min(chunk.start // bt, len(keys))):
                held = self.content.get(tables[chunk.row][at])
                assert held == keys[at], f"block {at} of {chunk.id} has {held}, not {keys[at]}"
            self.compute(chunk.id, chunk.start, chunk.start + chunk.tokens, tables[chunk.row])
        extra = self._draft(batch.decode_rows)
        for id in self._rows(batch.decode_rows).values():
            self.made[id] += 1
        if story.happens(0.05) and self.requests:
            self.cancel(story.draw.choice(list(self.requests)))
        running = [id for id in self._rows(batch.decode_rows).values() if id not in self.ended]
        stopped = [id for id in running if story.happens(0.02) and id not in extra]
        outcome = scheduler.commit(stopped=stopped)
        for id in outcome.prefilled:
            self.made[id] += 1
        for id in outcome.finished:
            self.ended.setdefault(id, "stopped" if id in stopped else "finished")
        for id, more in extra.items():
            if id in scheduler and id not in self.ended:
                self.made[id] += more
                scheduler.accept(id, more)
                if id not in scheduler:
                    self.ended[id] = "finished"
        if batch.preempted:
            story.tell(f"{self.name}: {list(batch.preempted)} make room")

    def _rows(self, rows: Any) -> dict[int, int]:
        sequences: dict[int, Any] = self.scheduler._sequences  # pyright: ignore
        return {s.row: id for id, s in sequences.items() if s.row in rows}

    def _draft(self, rows: Any) -> dict[int, int]:
        """Tokens that some rows make beyond one in this step."""
        found: dict[int, int] = {}
        for row, id in self._rows(rows).items():
            left = self.requests[id].max_new_tokens - self.made[id] - 1
            if left > 0 and self.story.happens(0.1):
                self.scheduler.reserve(row, 2)
                self._follow_moves()
                found[id] = min(left, 2, self.scheduler.room_of(row))
        return {id: more for id, more in found.items() if more > 0}

    def compute(self, id: int, start: int, stop: int, blocks: tuple[int, ...]) -> None:
        keys, bt = self.requests[id].keys, self.limits.block_tokens
        for at in range(start // bt, -(-stop // bt)):
            whole = (at + 1) * bt <= stop and at < len(keys)
            self.content[blocks[at]] = keys[at] if whole else ("of", id, at)

    def _follow_moves(self) -> None:
        tier = self.scheduler.room.tier
        for kind, key, block in tier.take_moves() if tier is not None else ():
            if kind is TierOp.SAVE:
                self.on_host[key] = self.content.get(block)
            elif kind is TierOp.DROP:
                del self.on_host[key]
            else:
                self.content[block] = self.on_host.pop(key)

    def check(self) -> None:
        check(self.scheduler)
        leaked = [id for id in self.scheduler.leases if self.ended.get(id) == "cancelled"]
        assert not leaked, f"the leases of {leaked}, which were cancelled, stay"


def check(scheduler: DisaggregatedScheduler) -> None:
    """Every block is free or owned, by exactly those who list it; nobody is counted twice."""
    tables, pool = scheduler.tables(), scheduler.pool
    held = [*tables.values(), *(lease.blocks for lease in scheduler.leases.values())]
    owners = Counter(block for blocks in held for block in blocks)
    assert dict(owners) == pool.owners(), f"blocks {dict(owners)} are owned {pool.owners()}"
    assert len(owners) + pool.num_free == pool.num_blocks, "a block is lost"
    for hold in (*scheduler.leases.values(), *scheduler.landing.values()):
        assert scheduler.is_current(hold), f"{hold} was taken again"
    for hold in scheduler.landing.values():
        assert tables[hold.row] == hold.blocks, f"{hold} is not the row's"
    assert len(tables) == scheduler.num_running <= scheduler.limits.max_rows, "a row is lost"
    total = scheduler.num_waiting + scheduler.num_running
    assert scheduler.num_requests == total, f"{scheduler.num_requests} are {total} requests"


class Exchange:
    """Requests that B generates and A prefills, and what the two say to each other of them."""

    def __init__(self, story: Story) -> None:
        self.story, self.a, self.b = story, Replica(story, "A"), Replica(story, "B")
        self.loss, self.repeat = story.draw.choice(((0, 0), (0.15, 0.15), (0.4, 0.1)))
        self.to_come = story.draw.randint(3, 12)
        self.under_way: list[tuple[str, Callable[[], None]]] = []
        self.count = 0
        self.calm = False

    def send(self, what: str, act: Callable[[], None]) -> None:
        if not self.calm and self.story.happens(self.loss):
            self.story.tell(f"lost: {what}")
            return
        copies = 2 if not self.calm and self.story.happens(self.repeat) else 1
        self.under_way += [(what, act)] * copies

    def arrive(self) -> None:
        """Any of those under way: nothing keeps them in order."""
        what, act = self.under_way.pop(self.story.draw.randrange(len(self.under_way)))
        self.story.tell(f"arrives: {what}")
        act()

    def come(self) -> None:
        draw, self.to_come, id = self.story.draw, self.to_come - 1, self.count
        self.count += 1
        room = min(r.limits.num_blocks * r.limits.block_tokens for r in (self.a, self.b))
        prompt, length = draw.randint(1, max(1, room * 2 // 3)), draw.randint(2, max(2, room // 4))
        family = draw.randrange(3)

        def request(replica: Replica, new: int) -> Request:
            full = prompt // replica.limits.block_tokens
            keys = [(family, at) for at in range(full)]
            return Request(id, prompt, new, keys=keys, priority=draw.choice((0, 0, 1)))

        verb = draw.choice(("add", "add", "insert", "expect", "expect", "expect"))
        first = int(verb == "insert")
        if self.b.take(verb, request(self.b, length), made=first) and verb == "expect":
            order = request(self.a, 1)
            self.send(f"order {id}", lambda: self.ordered(order))

    def ordered(self, order: Request) -> None:
        known = order.id in self.a.requests
        if not known and not self.a.take("prefill", order):
            self.send(f"refusal of {order.id}", lambda: self.lose(order.id))

    def told(self, id: int) -> None:
        """A's first token of a prompt has come to B."""
        if self.b.scheduler.offer(id):
            self.b.made[id] = 1
        elif id not in self.b.scheduler:
            self.send(f"end of {id}", lambda: self.free(id))

    def lose(self, id: int) -> None:
        self.b.scheduler.lose(id)

    def free(self, id: int) -> None:
        self.a.cancel(id)
        self.a.scheduler.free(id)

    def land(self) -> None:
        """All of the KV of a row came, or not before B gave it up."""
        id = self.story.draw.choice(list(self.b.scheduler.landing))
        lease = self.a.scheduler.leases.get(id)
        if id in self.a.requests and lease is None:
            self.story.tell(f"B: {id} is too late at A")
            self.lose(id)
            return
        self.story.tell(f"B: {id} has landed")
        request, tables = self.b.requests[id], self.b.scheduler.tables()
        row = self.b.scheduler.landing[id].row
        self.b.compute(id, 0, request.prompt_tokens, tables[row])
        self.b.scheduler.land(id)
        self.send(f"end of {id}", lambda: self.free(id))

    def step(self, replica: Replica) -> None:
        leased = set(replica.scheduler.leases)
        replica.step()
        for id in replica.scheduler.leases.keys() - leased:
            self.send(f"first token of {id}", lambda id=id: self.told(id))

    def give_up(self) -> None:
        """The timers of either side: a lease ends, B waits no longer."""
        if (leases := list(self.a.scheduler.leases)) and self.story.happens(0.5):
            id = self.story.draw.choice(leases)
            self.story.tell(f"A: the lease of {id} ends")
            self.free(id)
        elif self.b.requests:
            id = self.story.draw.choice(list(self.b.requests))
            self.story.tell(f"B: {id} is late")
            self.lose(id)

    def event(self) -> None:
        story, at = self.story, self.story.draw.random()
        if self.to_come and at < 0.15:
            self.come()
        elif self.under_way and at < 0.4:
            self.arrive()
        elif self.b.scheduler.landing and at < 0.55:
            self.land()
        elif at < (0.75 if self.calm else 0.6):
            self.give_up()
        elif at < 0.63 and self.b.requests and not self.calm:
            self.b.cancel(story.draw.choice(list(self.b.requests)))
        elif at < 0.64 and not self.calm:
            story.draw.choice((self.a, self.b)).abort()
        else:
            self.step(story.draw.choice((self.a, self.b)))
        self.a.check()
        self.b.check()

    @property
    def is_over(self) -> bool:
        a, b = self.a.scheduler, self.b.scheduler
        return not (self.to_come or a.num_requests or b.num_requests or a.leases or self.under_way)


def simulate(story: Story) -> None:
    """Until nothing is left; each request of B made all its tokens, or ended in words."""
    exchange = Exchange(story)
    for count in range(_MOST_EVENTS):
        exchange.calm = count > _MOST_EVENTS // 3
        if exchange.is_over:
            break
        exchange.event()
    else:
        left = [*exchange.a.requests, *exchange.b.requests]
        raise AssertionError(f"some of {left} wait for ever")
    for replica in (exchange.a, exchange.b):
        for id, request in replica.requests.items():
            made, ended = replica.made[id], replica.ended.get(id)
            assert ended is not None, f"{replica.name} lost {id} silently"
            whole = made == request.max_new_tokens
            assert whole or ended != "finished", f"{id} made {made} of {request.max_new_tokens}"
            assert made <= request.max_new_tokens, f"{id} made {made}, too many"
        pool = replica.scheduler.pool
        assert pool.num_free == pool.num_blocks, f"{replica.name}: blocks are not free"
