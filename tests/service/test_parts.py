"""Templates, logs, limits, health and the exchange, each alone."""

import asyncio
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rooflight.batching.request import Limits
from rooflight.errors import UsageError
from rooflight.serve.chat.chat_template import load_template
from rooflight.serve.engine.request import Delta
from rooflight.serve.http.middleware import request_span
from rooflight.serve.server.address import check_address
from rooflight.serve.server.exchange import Exchange, Inbox
from rooflight.serve.server.logs import Log
from rooflight.serve.server.problem import ApiError
from rooflight.serve.server.waiting_limit import waiting_limit

from .tiny_model import make_folder

MESSAGES = [{"role": "user", "content": "hello"}]
LIMITS = Limits(max_rows=4, max_step_tokens=36, num_blocks=8, block_tokens=16, max_waiting=5)


def template_of(folder: Path, source: object) -> Any:
    names = {"chat_template": source, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return load_template(folder)


def test_a_template_writes_messages_as_transformers_does(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    messages = [*MESSAGES, {"role": "assistant", "content": "hi\n <b>"}, *MESSAGES]
    wanted = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ours = load_template(folder)
    assert ours is not None and ours.render(messages, most=1000) == wanted


@pytest.mark.parametrize(
    "source",
    (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('no') }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    ),
)
def test_a_hostile_template_can_do_nothing(tmp_path: Path, source: str) -> None:
    template = template_of(tmp_path, source)
    with pytest.raises(ApiError) as caught:
        template.render(MESSAGES, most=1000)
    assert caught.value.status == 400


def test_text_of_a_message_is_never_a_template(tmp_path: Path) -> None:
    template = template_of(tmp_path, "{{ bos_token }}{{ messages[0].content }}")
    content = "{{ 7 * 7 }}{% raw %}"
    assert template.render([{"role": "user", "content": content}], most=99) == f"<s>{content}"


def test_a_template_that_does_not_parse_is_the_operators_to_repair(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="template"):
        template_of(tmp_path, "{% for %}")
    assert template_of(tmp_path, None) is None


def test_a_log_writes_lines_and_survives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(str(path))
    log.event("one", n=1)
    log.close()
    assert json.loads(path.read_text())["n"] == 1 and path.stat().st_mode & 0o077 == 0
    full = Log("/dev/full")
    for _ in range(50):
        full.event("lost")
    full.close()
    assert full.dropped == 50
    gone = Log(str(tmp_path / "no" / "such" / "folder"))
    gone.event("lost")
    gone.close()
    assert gone.dropped == 1


def test_a_line_of_the_log_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that fills in the middle of one, and has room again later."""
    path, write, left = tmp_path / "log", os.write, [100]

    def some(file: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "no space")
        written = write(file, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", some)
    log = Log(str(path))
    for number in range(10):
        log.event("one", n=number)
    log.close()
    left[0] = 10**6
    again = Log(str(path))
    again.event("last", n=99)
    again.close()
    found = [json.loads(line)["n"] for line in path.read_text().splitlines()]
    assert found[-1] == 99 and found[:-1] == [*range(len(found) - 1)] and log.dropped > 0


def test_a_log_that_is_stuck_does_not_hold_anybody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody reads: opening it waits for ever
    log = Log(str(pipe))
    for _ in range(20_000):
        log.event("x")
    assert log.dropped > 5000


class _Cost:
    """A step takes a millisecond a token."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        assert kv_tokens > 0 and prefill_kv_tokens > 0
        return (decode_rows + prefill_tokens) * 1e-3

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return 0.0


def test_what_may_wait_follows_from_the_promise_and_the_plan() -> None:
    found = waiting_limit(LIMITS, _Cost(), ttft_s=9, max_model_tokens=10)
    assert found.step_seconds is not None and found.step_seconds == pytest.approx(0.036)
    assert found.prefill_tokens_per_s == pytest.approx(32 / 0.036)
    assert found.max_waiting_tokens == int(9 * 32 / found.step_seconds) and "9 s" in found.because
    assert found.seconds(found.max_waiting_tokens) == pytest.approx(9, rel=1e-3)


def test_a_limit_without_a_plan_says_so() -> None:
    found = waiting_limit(LIMITS, None, ttft_s=1, max_model_tokens=10)
    assert found.step_seconds is None and "unknown" in found.because and found.seconds(1) == 1
    found = waiting_limit(LIMITS, _Cost(), ttft_s=None, max_model_tokens=10)
    assert found.step_seconds and "no TTFT" in found.because
    found = waiting_limit(LIMITS, _Cost(), ttft_s=1e-6, max_model_tokens=10)
    assert found.max_waiting_tokens == 10  # or nothing could ever wait


def test_deltas_cross_over_from_a_thread_to_those_who_wait() -> None:
    async def main() -> list[int]:
        exchange, inbox, other = Exchange(), Inbox(), Inbox()
        exchange.attach()
        exchange.open(1, inbox)
        exchange.open(2, other)
        exchange.close(2)
        deltas = [Delta(i, (i,)) for i in (1, 2, 3, 1)]
        threading.Thread(target=exchange.deliver, args=(deltas,)).start()
        return [d.id for d in await asyncio.wait_for(inbox.take(), 300)]

    assert asyncio.run(main()) == [1, 1]


def test_a_loop_that_is_gone_does_not_hurt_the_engine() -> None:
    exchange = Exchange()
    exchange.deliver([Delta(1)])  # before there is one

    async def attach() -> None:
        exchange.attach()

    asyncio.run(attach())
    exchange.deliver([Delta(1)])  # after it


def test_a_request_is_a_span_under_that_of_its_caller() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    spans: list[Any] = []

    class Tracer(trace.NoOpTracer):
        def start_as_current_span(self, name: str, context: Any, **ways: Any) -> Any:
            parent = trace.get_current_span(context).get_span_context()
            spans.append((name, parent.span_id, ways["record_exception"]))
            return super().start_as_current_span(name, context, **ways)  # pyright: ignore

    class Provider(trace.NoOpTracerProvider):
        def get_tracer(self, *words: Any, **more: Any) -> Any:
            del words, more
            return Tracer()

    trace.set_tracer_provider(Provider())
    caller = "00-0123456789abcdef0123456789abcdef-00000000000000ff-01"
    with request_span("/v1/models", {"traceparent": caller}) as note:
        note({"status": 200})
    assert spans == [("/v1/models", 255, False)]


@pytest.mark.parametrize("host", ("127.0.0.1", "localhost", "::1", "127.5.5.5"))
def test_loopback_needs_no_key(host: str) -> None:
    check_address(host, has_keys=False)


@pytest.mark.parametrize("host", ("0.0.0.0", "::", "", "192.168.1.1", "example.com"))
def test_any_other_address_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="key"):
        check_address(host, has_keys=False)
    check_address(host, has_keys=True)


def test_folders_of_one_seed_are_the_same(tmp_path: Path) -> None:
    one, two = (make_folder(tmp_path / name) / "model.safetensors" for name in "ab")
    assert one.read_bytes() == two.read_bytes()
