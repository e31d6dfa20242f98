"""The leader of a run, on host 0: who is there, when an attempt begins, what its end means.

It owns no device. Hosts connect and send their facts; when all are there and agree, they are told
to go, with an address for `jax.distributed`. The first failure ends the attempt for all, because
the peers of a dead process only hang. An attempt that got no further than those before it waits
longer for the next; after several, the leader gives up and says why. Who does not know the run's
secret is told nothing; a host that differs is told in what, and the leader's own words say how.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rooflight.errors import ParseError
from rooflight.plan.file.codec import decode
from rooflight.train.facts import Facts
from rooflight.train.lines import Connection, Message, meet

_STOPPED_WITHIN_S, _GOODBYE_S = 15.0, 2.0
_NAMED_AFTER_S = 10.0  # a host that is not there by then is named
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
Tell = Callable[..., None]


@dataclass(slots=True)
class _JoinedHost:
    line: Connection
    state: str = "ready"  # ready, running, or how its attempt ended
    why: str = ""


@dataclass(slots=True)
class Leader:
    """Decides for all hosts. `start` has the command that starts a host, by its number."""

    facts: Facts
    secret: bytes
    num_hosts: int
    retries: int
    tell: Tell
    say: Callable[[str], None]
    start: Callable[[int], str]
    coordinator: Callable[[], str]  # an address that is free, for each attempt
    attempt: int = 0  # the last one
    step: int = 0  # the furthest that any attempt got
    is_stopping: bool = False  # a host was told to stop: this attempt is the last
    _hosts: dict[int, _JoinedHost] = field(default_factory=dict[int, _JoinedHost])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _strangers: int = 0

    async def lead(self) -> str:
        """Attempts until one finishes or is preempted, or too many get nowhere."""
        idle, wait = 0, _FIRST_WAIT_S
        while True:
            await self._all_there()
            before = self.step
            self.attempt += 1
            self.tell("attempt", attempt=self.attempt, hosts=self.num_hosts)
            self._order({"go": self.attempt, "coordinator": self.coordinator()}, "running")
            ended, why = await self._end()
            await self._stop(why)
            if ended in ("finished", "preempted"):
                return ended
            if self.is_stopping:
                self.say(f"stopped unsaved after step {self.step}: {why}")
                return "preempted"
            idle, wait = (0, _FIRST_WAIT_S) if self.step > before else (idle + 1, wait * 2)
            self.tell("failed", attempt=self.attempt, step=self.step, reason=why)
            if idle > self.retries:
                return f"gave up at step {self.step}, {idle} attempts got no further: {why}"
            self.say(
                f"attempt {self.attempt} failed at step {self.step}: {why}; again in {wait:g} s"
            )
            for host in self._hosts.values():
                host.state = "ready"
            await asyncio.sleep(min(wait, _LONGEST_WAIT_S))

    def dismiss(self, ending: str) -> None:
        self._order({"bye": ending}, None)

    async def gone(self) -> None:
        """Waits a little for hosts to hang up; those that do not are cut off."""
        until = time.monotonic() + _GOODBYE_S
        while self._hosts and await self._wait(until - time.monotonic()):
            pass
        for host in self._hosts.values():
            host.line.close()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One host, from its facts until it is gone."""
        line = await meet(reader, writer, self.secret, "leader")
        if line is None:
            self._strangers += 1
            if self._strangers == 1:  # of many, one line
                who = str((writer.get_extra_info("peername") or ["nobody"])[0])
                self.say(f"a stranger at {who}, who does not know the secret, was turned away")
            writer.close()
            return
        hello = await line.receive()
        if hello is None:  # cut short: it will call again
            return line.close()
        number, told, reason = self._greet(hello)
        if number in self._hosts and not reason:  # of before, perhaps, until its line is known dead
            line.send({"later": f"host {number} is there already"})
            return line.close()
        if reason:
            line.send({"refused": told})
            who = "a host" if number is None else f"host {number}"
            begin = "" if number is None else f"; start it with: {self.start(number)}"
            self.say(f"{who} was refused: {reason}{begin}")
            line.close()
            return
        assert number is not None
        host = self._hosts[number] = _JoinedHost(line, why=f"host {number} began anew")
        self._changed.set()
        while (message := await line.receive()) is not None:
            self._heard(host, message)
        line.close()
        if self._hosts.get(number) is host:
            del self._hosts[number]
            host.state, host.why = "lost", f"host {number} is gone"
        self._changed.set()

    def _greet(self, hello: Message) -> tuple[int | None, str, str]:
        """The number of a host, if it has one here; why it cannot take part, for it and for us."""
        number = hello.get("host")
        if type(number) is not int or not 0 <= number < self.num_hosts:
            return None, "no such host", f"it calls itself host {number!r} of {self.num_hosts}"
        try:
            found = decode(Facts, hello.get("facts"))
        except ParseError as error:
            return number, "another version", f"it speaks as another version does: {error}"
        if differ := self.facts.differences(found):
            return number, f"it has another {', '.join(differ)}", "; ".join(differ.values())
        return number, "", ""

    def _heard(self, host: _JoinedHost, message: Message) -> None:
        if isinstance(step := message.get("step"), int):
            self.step = max(self.step, step)
        self.is_stopping |= "stopping" in message
        if "ended" in message:
            host.state, host.why = str(message["ended"]), str(message.get("why", ""))
            self._changed.set()

    def _order(self, message: Message, state: str | None) -> None:
        for host in self._hosts.values():
            if state is not None:
                host.state = state
            host.line.send(message)

    async def _all_there(self) -> None:
        """Waits for hosts; names those that do not come, with the command that starts each."""
        since, named = time.monotonic(), set[int]()
        while len(self._hosts) < self.num_hosts:
            left = _NAMED_AFTER_S - (time.monotonic() - since)
            if left <= 0:
                missing = {*range(self.num_hosts)} - self._hosts.keys() - named
                for number in sorted(missing):
                    self.say(f"host {number} is not there; start it with: {self.start(number)}")
                named |= missing
            await self._wait(left if left > 0 else 1.0)

    async def _end(self) -> tuple[str, str]:
        """How the attempt ended: the first failure, or what all hosts say."""
        while True:
            hosts = [*self._hosts.values()]
            for host in hosts:
                if host.state in ("failed", "ready"):
                    return "failed", host.why
            if len(hosts) < self.num_hosts:
                gone = min({*range(self.num_hosts)} - self._hosts.keys())
                return "failed", f"host {gone} is gone"
            states = {host.state for host in hosts}
            if states <= {"finished", "preempted"}:
                return ("preempted" if "preempted" in states else "finished"), ""
            await self._wait()

    async def _stop(self, why: str) -> None:
        """Ends the workers of all hosts, and waits until each says that they are gone."""
        for host in self._hosts.values():
            if host.state != "ready":  # it came meanwhile, and has none
                host.line.send({"stop": why})
        until, done = time.monotonic() + _STOPPED_WITHIN_S, ("stopped", "ready")
        while any(host.state not in done for host in self._hosts.values()):
            if not await self._wait(until - time.monotonic()):
                for number in [n for n, h in self._hosts.items() if h.state not in done]:
                    self.say(f"host {number} does not answer; start it with: {self.start(number)}")
                    self._hosts.pop(number).line.close()

    async def _wait(self, seconds: float | None = None) -> bool:
        """Until something changed; False if nothing did in time."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True
