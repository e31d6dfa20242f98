"""What is honoured and what is refused, as docs/openai.md lists it, by two clients.

`ROOFLIGHT_UPDATE_GOLDEN=1 pytest tests/service/test_api_calls.py` writes the page.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .api_calls import CALLS, CHAT, COMPLETION, MODEL, NO_EFFECT, REFUSED, Call, body_of
from .client import Reply
from .server_process import Server, start_server
from .test_tools import tools_folder

pytest.importorskip("llguidance")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "openai.md"
BEGIN = "<!-- calls -->\n"
PATHS = {CHAT: "/v1/chat/completions", COMPLETION: "/v1/completions"}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(tools_folder(tmp_path_factory.mktemp("calls") / "tiny")) as server:
        yield server


def send(server: Server, call: Call) -> Reply:
    body = body_of(call)
    if call.kind == MODEL:
        return server.client.get(f"/v1/models/{body['model']}")
    return server.client.post(PATHS[call.kind], body)


def row(call: Call, reply: Reply) -> str:
    text = json.dumps(call.fields).replace("|", "\\|")
    why = "" if reply.status == 200 else f"{reply.status}: {reply.json['error']['message']}"
    return f"| `{call.kind}` | `{text}` | {call.verdict} | {why} |"


def choices(reply: Reply) -> Any:
    return reply.json["choices"]


def test_the_page_says_what_the_server_does(caller: Server) -> None:
    rows = ["| call | with | | in words |", "|---|---|---|---|"]
    for call in CALLS:
        reply = send(caller, call)
        assert (reply.status == 200) == (call.verdict != REFUSED), (call, reply.body)
        if call.verdict == NO_EFFECT:
            assert choices(reply) == choices(send(caller, Call(call.kind, {}))), call
        rows.append(row(call, reply))
    table = "\n".join(rows) + "\n"
    head, _, found = PAGE.read_text().partition(BEGIN)
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        PAGE.write_text(head + BEGIN + table)
        found = table
    assert found == table


@pytest.mark.full
def test_openais_own_client_sees_the_same(caller: Server, tmp_path: Path) -> None:
    """Installed into a folder of its own."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), "openai"]
    subprocess.run(pip, check=True)
    calls = json.dumps([[call.kind, body_of(call)] for call in CALLS])
    worker = [sys.executable, str(Path(__file__).with_name("openai_worker.py"))]
    url = f"http://{caller.client.host}:{caller.client.port}/v1"
    done = subprocess.run(
        [*worker, url],
        input=calls,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for call, (status, found) in zip(CALLS, json.loads(done.stdout), strict=True):
        ours = send(caller, call)
        assert status == ours.status, call
        if status != 200:
            assert found == ours.code, call
        elif call.kind != MODEL and not call.fields.get("stream"):
            assert found == [_seen(choice) for choice in choices(ours)], call
        elif call.fields.get("stream"):
            whole = send(caller, call._replace(fields={**call.fields, "stream": None}))
            whole_choices = [_seen(choice) for choice in choices(whole)]
            assert found == whole_choices or "stream_options" in call.fields, call


def _seen(choice: dict[str, Any]) -> list[Any]:
    message = choice.get("message", {})
    text = message.get("content", choice.get("text")) or ""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [text, [[f["name"], f["arguments"]] for f in functions], choice["finish_reason"]]
