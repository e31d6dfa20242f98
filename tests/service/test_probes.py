"""Requests that have brought other servers down: refused at once, or answered; healthy after."""

import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from .client import MODEL
from .server_process import MAX_TOKENS, Server

HUGE = 60_000_000
WRONG: dict[str, dict[str, object]] = {
    "a prompt of 20,000 tokens": {"prompt": [11] * 20_000},
    "n of 100,000": {"n": 100_000},
    "best_of of 10,000": {"best_of": 10_000},
    "a billion new tokens": {"max_tokens": 10**9, "ignore_eos": True},
    "minus one new token": {"max_tokens": -1},
    "no new token": {"max_tokens": 0},
    "a temperature below 0": {"temperature": -1},
    "a temperature of text": {"temperature": "1"},
    "a temperature of true": {"temperature": True},
    "a top_p of 2": {"top_p": 2},
    "a top_p of 0": {"top_p": 0},
    "a top_k below -1": {"top_k": -2},
    "10,000 stop strings": {"stop": [f"x{i}" for i in range(10_000)]},
    "a stop string of 10,000 characters": {"stop": "x" * 10_000},
    "an empty stop string": {"stop": ""},
    "a token that is not there": {"prompt": [99_999_999]},
    "a token below 0": {"prompt": [-5]},
    "tokens that are floats": {"prompt": [1.5]},
    "an empty prompt": {"prompt": ""},
    "no tokens": {"prompt": []},
    "an empty prompt among others": {"prompt": ["a", ""]},
    "no prompt": {"prompt": None},
    "a prompt that is an object": {"prompt": {"a": 1}},
    "half a surrogate pair": {"prompt": "\ud800"},
    "a bias of a token that is not there": {"logit_bias": {"999999999": 100}},
    "a bias of a name": {"logit_bias": {"cat": 1}},
    "a bias that is no number": {"logit_bias": {"5": "1"}},
    "a bias of 1,000": {"logit_bias": {"5": 1000}},
    "biases of 301 tokens": {"logit_bias": {str(i): 1 for i in range(301)}},
    "a penalty of 3": {"presence_penalty": 3},
    "a repetition penalty of 0": {"repetition_penalty": 0},
    "a min_p of 2": {"min_p": 2},
    "100,000 log probabilities": {"logprobs": 100_000},
    "5,000 prompts": {"prompt": ["a"] * 5000, "max_tokens": 1},
    "more choices than there may be": {"prompt": ["a"] * 16, "n": 2},
    "a regular expression": {"structured_outputs": {"regex": "(a+)+$"}},
    "a guided regular expression": {"guided_regex": "(a+)+$"},
    "a grammar": {"grammar": "root ::= (((("},
    "a seed that is no number": {"seed": "x"},
    "a path": {"lora_path": "/etc/passwd"},
    "a URL": {"image_url": "http://169.254.169.254/"},
    "a request id of the client": {"request_id": "1"},
    "a logit processor": {"custom_logit_processor": "gASVK"},
    "a stream that is no flag": {"stream": "yes"},
    "echo": {"echo": True},
    "a format of regular expressions": {"response_format": {"type": "regex", "regex": "a"}},
    "text that is longer than any prompt": {"prompt": "a" * 100_000},
}


@pytest.fixture(scope="module")
def answer_s(server: Server) -> float:
    """CPU seconds of the server for a long answer, which anybody may ask for."""
    begin = server.cpu_s
    assert server.client.complete(max_tokens=MAX_TOKENS - 64, ignore_eos=True).status == 200
    return server.cpu_s - begin


@pytest.fixture
def cheap(server: Server, answer_s: float) -> Iterator[None]:
    """Whatever the test sends costs the server less than an answer."""
    begin = server.cpu_s
    yield
    assert server.cpu_s - begin < answer_s


@pytest.fixture(autouse=True)
def healthy(server: Server) -> Iterator[None]:
    yield
    client = server.client
    assert client.get("/health").status == 200 and server.process.poll() is None
    assert client.complete(max_tokens=2).status == 200


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused_at_once(server: Server, name: str) -> None:
    reply = server.client.complete(**WRONG[name])
    assert reply.status == 400 and reply.code in ("invalid_value", "unsupported_parameter")


def test_a_request_at_its_bounds_is_answered(server: Server) -> None:
    fields = {"prompt": ["a"] * 16, "max_tokens": 1, "stop": ["s" * 128] * 16, "logprobs": 20}
    neutral: dict[str, object] = {
        "best_of": 1,
        "echo": False,
        "suffix": "",
        "logit_bias": {str(i): 1 for i in range(300)},
        "top_k": -1,
    }
    assert server.client.complete(**fields, **neutral, user="me", seed=2**31 - 1).status == 200
    assert server.client.complete(prompt=[5] * (MAX_TOKENS - 1), max_tokens=1).status == 200


def test_a_prompt_that_does_not_fit_is_told_both_numbers(server: Server) -> None:
    reply = server.client.complete(prompt=[5] * 500, max_tokens=100)
    message = reply.json["error"]["message"]
    assert reply.status == 400 and "500" in message and "100" in message and "512" in message


def test_another_model_is_not_found(server: Server) -> None:
    reply = server.client.complete(model="nope")
    assert reply.status == 404 and reply.code == "model_not_found"


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    "body",
    (
        b"{bad json",
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "a", "temperature": -Infinity}',
        b'{"model": "tiny", "prompt": "a", "temperature": 1e999}',
        b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"model": "tiny", "prompt": "\xff\xfe"}',
        b'\xef\xbb\xbf{"model": "tiny", "prompt": "a"}',
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny", "prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b"\x00" * 1000,
    ),
    ids=range(15),
)
def test_a_body_that_is_no_request_is_refused(server: Server, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        reply = server.client.send("POST", path, body)
        assert reply.status == 400 and reply.code in ("invalid_json", "invalid_value")


@pytest.mark.usefixtures("cheap")
def test_a_body_of_60_megabytes_is_refused_unread(server: Server) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a" * HUGE}).encode()
    with pytest.MonkeyPatch.context():
        try:
            reply = server.client.send("POST", "/v1/completions", body)
        except (BrokenPipeError, ConnectionResetError):
            reply = None  # refused so early that the rest could not be sent
    assert reply is None or (reply.status == 413 and reply.code == "body_too_large")


def test_a_body_without_a_length_is_bounded_as_well(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock = server.client.raw(head + b"Transfer-Encoding: chunked\r\n\r\n")
    part = b"%x\r\n" % 65536 + b"a" * 65536 + b"\r\n"
    reply = b""
    with sock:
        try:
            for _ in range(64):  # 4 MiB
                sock.sendall(part)
        except OSError:
            pass
        reply = sock.recv(4096)
    assert b" 413 " in reply.split(b"\r\n")[0] + b" "


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("encoding", ("gzip", "deflate", "br", "x"))
def test_a_compressed_bomb_is_refused_unopened(server: Server, encoding: str) -> None:
    bomb = b'{"model":"tiny","prompt":"' + b"a" * 50_000_000 + b'"}'
    packed = gzip.compress(bomb) if encoding == "gzip" else zlib.compress(bomb)
    reply = server.client.send("POST", "/v1/completions", packed, Content_Encoding=encoding)
    assert reply.status == 415 and reply.code == "unsupported_encoding"


@pytest.mark.parametrize("kind", ("text/plain", "multipart/form-data", "", "application/x-pickle"))
def test_a_body_of_another_kind_is_refused(server: Server, kind: str) -> None:
    reply = server.client.send("POST", "/v1/completions", b"{}", Content_Type=kind)
    assert reply.status == 415


@pytest.mark.parametrize(
    "path",
    (
        *("/v1/models/../../etc/passwd", "/..%2f..%2fetc/passwd", "//health", "/health/", "/%00"),
        *("/v1/completions/", "/v1//models", "/v1/models%2f", "/admin", "/", "/static/x", "/v2"),
    ),
)
def test_a_path_that_is_no_route_is_not_found(server: Server, path: str) -> None:
    reply = server.client.get(path)
    assert reply.status in (404, 405) and reply.code in ("no_such_route", "method_not_allowed")


@pytest.mark.parametrize("path", ("/v1/completions", "/v1/chat/completions", "/tokenize"))
def test_get_changes_nothing(server: Server, path: str) -> None:
    assert server.client.get(path).code == "method_not_allowed"


def test_lines_that_are_no_http_end_the_connection_only(server: Server) -> None:
    for data in (b"\x16\x03\x01\x02\x00" * 10, b"GET\r\n\r\n", b"A" * 100_000 + b"\r\n\r\n"):
        with server.client.raw(data) as sock:
            reply = _read(sock)
            assert b"Traceback" not in reply and b"/site-packages/" not in reply


def test_two_lengths_are_no_request(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    lengths = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with server.client.raw(head + lengths) as sock:
        assert b" 400 " in sock.recv(4096).split(b"\r\n")[0] + b" "


@pytest.mark.parametrize("timeout", ("x", "-1", "0", "nan", ""))
def test_a_deadline_that_is_none_is_refused(server: Server, timeout: str) -> None:
    body = {"model": MODEL, "prompt": "a"}
    assert server.client.post("/v1/completions", body, X_Request_Timeout=timeout).status == 400


def test_schemas_that_are_bombs_are_refused_or_followed(server: Server, answer_s: float) -> None:
    pytest.importorskip("llguidance")
    deep: dict[str, object] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    pattern = {"type": "string", "pattern": "(((((a{1,200}){1,200}){1,200}){1,200}){1,200})"}
    nested = {"type": "string", "pattern": "^(a+)+$"}
    reference = {"$ref": "http://169.254.169.254/latest"}
    loop = {"$ref": "#"}
    for schema in (deep, wide, pattern, nested, reference, loop, {"type": 5}):
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        begin = server.cpu_s
        reply = server.client.complete(response_format=form, max_tokens=4)
        assert reply.status in (200, 400), schema
        assert server.cpu_s - begin < answer_s, schema


def test_schemas_that_never_end_hold_up_nobody_and_leave_nothing(server: Server) -> None:
    """Several at once: others are tokenised meanwhile, and memory is what it was."""
    pytest.importorskip("llguidance")
    bomb = {"type": "integer", "multipleOf": 9999991}
    form = {"type": "json_schema", "json_schema": {"schema": bomb}}
    good = {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}
    assert server.client.complete(response_format=good, max_tokens=4, n=4).status == 200
    before = server.resident_bytes
    with ThreadPoolExecutor(4) as pool:
        bombs = [pool.submit(server.client.complete, response_format=form) for _ in range(4)]
        while not all(bomb.done() for bomb in bombs):
            assert server.client.post("/tokenize", {"prompt": "a b"}).status == 200
            assert server.client.complete(max_tokens=1).status == 200
    assert {bomb.result().status for bomb in bombs} == {400}
    assert server.client.complete(response_format=good, max_tokens=4).status == 200
    assert server.resident_bytes - before < 100e6


def test_every_field_at_its_most_holds_up_nobody(server: Server) -> None:
    """All at once: health is answered soon all the while, and memory is what it was."""
    large = {"n": 16, "logprobs": 20, "max_tokens": 250, "ignore_eos": True, "temperature": 2}
    large |= {"stop": ["x" * 128] * 16, "prompt": "a"}
    assert server.client.complete(**large).status == 200
    before = server.resident_bytes
    lags: list[float] = []
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(server.client.complete, **large) for _ in range(3)]
        while not all(one.done() for one in asked):
            start = time.monotonic()
            assert server.client.get("/health").status == 200
            lags.append(time.monotonic() - start)
            time.sleep(0.01)
    assert {one.result().status for one in asked} <= {200, 429}
    assert sorted(lags)[len(lags) // 2] < 0.1  # of the loop, however busy the machine is
    assert server.resident_bytes - before < 200e6
    too_many = server.client.complete(**large | {"max_tokens": 400})
    assert too_many.status == 400 and "log probabilities" in too_many.json["error"]["message"]


def test_one_hundred_requests_at_once_are_all_answered(server: Server) -> None:
    socks = [server.client.open_stream(max_tokens=8, prompt=f"p{i}") for i in range(100)]
    for sock in socks:
        with sock:
            assert b"data: [DONE]" in _read_stream(sock)


def _read(sock: socket.socket) -> bytes:
    """Until the server closes, or says nothing for a moment."""
    sock.settimeout(2)
    found = b""
    try:
        while part := sock.recv(65536):
            found += part
    except OSError:
        pass
    return found


def _read_stream(sock: socket.socket) -> bytes:
    found = b""
    while b"[DONE]" not in found and (part := sock.recv(65536)):
        found += part
    return found
