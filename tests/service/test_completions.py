"""Completions and chats of a real server: the same text in whatever way it is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from .server_process import MAX_TOKENS, Server
from .tiny_model import VOCAB


def text_of(events: list[dict[str, Any]]) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"]["content"] for c in choices)


def test_a_completion_has_the_shape_that_clients_read(server: Server) -> None:
    body = server.client.complete().json
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["model"] == "tiny" and len(body["choices"]) == 1
    assert body["choices"][0]["finish_reason"] in ("length", "stop")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] <= 8


def test_the_model_is_found_by_its_name(server: Server) -> None:
    listed = server.client.get("/v1/models").json["data"]
    assert [server.client.get(f"/v1/models/{one['id']}").json for one in listed] == listed
    other = server.client.get("/v1/models/nope")
    assert other.status == 404 and other.code == "model_not_found"


def test_the_time_to_a_first_token_is_told_in_parts(server: Server) -> None:
    names = ("time_to_first_token", "request_queue_time", "request_prefill_time")

    def sums() -> list[float]:
        return [server.client.metric(f"vllm:{name}_seconds_sum") for name in names]

    before = sums()
    server.client.complete()
    ttft, queue, prefill = (new - old for new, old in zip(sums(), before, strict=True))
    assert ttft > 0 and prefill > 0 and queue >= 0
    assert abs(queue + prefill - ttft) < 1e-6


@pytest.mark.full
def test_greedy_texts_are_those_of_transformers(server: Server, folder: Path) -> None:
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    theirs = transformers.LlamaForCausalLM.from_pretrained(str(folder))
    theirs.generation_config.eos_token_id = None
    for prompt in ("the cat", "scale your model", "naïve 你好"):
        tokens = server.client.post("/tokenize", {"prompt": prompt}).json["tokens"]
        made = theirs.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens)),
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
        )
        new = [t for t in made[0, len(tokens) :].tolist() if t < VOCAB]
        wanted = server.client.post("/detokenize", {"tokens": new}).json["prompt"]
        ours = server.client.complete(prompt=prompt, max_tokens=24, ignore_eos=True).json
        assert ours["choices"][0]["text"] == wanted


@pytest.mark.parametrize("temperature", (0, 0.9))
def test_a_stream_adds_up_to_the_answer_in_one_piece(server: Server, temperature: float) -> None:
    fields = {"temperature": temperature, "seed": 7, "max_tokens": 60, "prompt": "scale"}
    whole = server.client.complete(**fields).json
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = server.client.complete(**fields, **options).events
    assert text_of(events) == whole["choices"][0]["text"]
    assert len(events) > 10  # in pieces
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(e["usage"] is None for e in events[:-1])


def test_a_chat_streams_what_it_answers(server: Server) -> None:
    whole = server.client.chat("how are you?", max_tokens=40).json
    events = server.client.chat("how are you?", max_tokens=40, stream=True).events
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant" and text_of(events) == message["content"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in events[1]["choices"][0]["delta"]
    assert {e["object"] for e in events} == {"chat.completion.chunk"}


def test_text_and_its_tokens_are_the_same_prompt(server: Server) -> None:
    tokens = server.client.post("/tokenize", {"prompt": "the cat"}).json["tokens"]
    by_text = server.client.complete(prompt="the cat").json["choices"][0]["text"]
    assert server.client.complete(prompt=tokens).json["choices"][0]["text"] == by_text


def test_every_prompt_and_every_n_is_a_choice(server: Server) -> None:
    body = server.client.complete(prompt=["the cat", "scale"], n=2, temperature=0.8, seed=3).json
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"][0]["text"] != body["choices"][1]["text"]
    alone = server.client.complete(prompt="the cat", temperature=0.8, seed=3).json
    assert body["choices"][0]["text"] == alone["choices"][0]["text"]


def test_a_seed_repeats_a_text(server: Server) -> None:
    fields = {"temperature": 1.0, "max_tokens": 30}
    first, again, other = (
        server.client.complete(**fields, seed=seed).json["choices"][0]["text"] for seed in (5, 5, 6)
    )
    assert first == again != other


def test_a_stop_string_cuts_the_text_before_it(server: Server) -> None:
    whole = server.client.complete(max_tokens=60, ignore_eos=True).json["choices"][0]["text"]
    middle = len(whole) // 2
    stop = whole[middle : middle + 5]
    wanted = whole[: whole.index(stop)]
    cut = server.client.complete(max_tokens=60, ignore_eos=True, stop=["no such", stop]).json
    assert cut["choices"][0] == {**cut["choices"][0], "text": wanted, "finish_reason": "stop"}
    assert cut["usage"]["completion_tokens"] < 60
    events = server.client.complete(max_tokens=60, ignore_eos=True, stop=stop, stream=True).events
    assert text_of(events) == wanted


def test_log_probabilities_name_tokens_that_add_up_to_the_text(server: Server) -> None:
    found = server.client.complete(logprobs=3, max_tokens=12).json["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["text_offset"]) == 12
    for logprob, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert logprob <= 0 and len(top) <= 3 and max(top.values()) == pytest.approx(logprob)
    fields: dict[str, object] = {"logprobs": True, "top_logprobs": 2, "ignore_eos": True}
    choice = server.client.chat("hello", **fields).json["choices"][0]
    entries = choice["logprobs"]["content"]
    pieces = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert pieces.decode("utf-8", "replace") == choice["message"]["content"]
    for entry in entries:
        best = [t["logprob"] for t in entry["top_logprobs"]]
        assert len(best) == 2 and best[0] == pytest.approx(entry["logprob"])
    events = server.client.chat("hello", **fields, stream=True).events
    assert [t for e in events for t in e["choices"][0]["logprobs"]["content"]] == entries


def test_a_prompt_that_comes_again_is_cached(server: Server) -> None:
    prompt = [(7 * i) % 250 + 5 for i in range(300)]
    first = server.client.complete(prompt=prompt, max_tokens=2).json
    again = server.client.complete(prompt=prompt, max_tokens=2).json
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 256  # two full blocks
    assert again["choices"] == first["choices"]


def test_a_chat_goes_on_to_the_end_of_the_model(server: Server) -> None:
    body = server.client.chat(max_tokens=None, ignore_eos=True).json
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == MAX_TOKENS


def test_tokens_and_text_go_back_and_forth(server: Server) -> None:
    for text in ("the cat", "naïve café 你好 🙂", " spaces  kept "):
        tokens = server.client.post("/tokenize", {"prompt": text}).json["tokens"]
        assert server.client.post("/detokenize", {"tokens": tokens}).json["prompt"] == text


def test_a_bias_makes_a_token_certain_or_impossible(server: Server) -> None:
    token = server.client.post("/tokenize", {"prompt": "x", "add_special_tokens": False}).json
    (id,) = token["tokens"]
    sure = server.client.complete(logit_bias={str(id): 100}, temperature=1.0, seed=1).json
    assert sure["choices"][0]["text"] == "x" * 8
    fields: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 2, "seed": 2}
    drawn = server.client.complete(**fields, n=8, logit_bias={str(id): -100}).json["choices"]
    assert not any("x" in one["text"] for one in drawn)


def test_a_min_p_of_one_takes_the_likeliest(server: Server) -> None:
    fields = {"max_tokens": 30, "ignore_eos": True}
    greedy = server.client.complete(**fields).json["choices"][0]["text"]
    drawn = server.client.complete(**fields, temperature=2, min_p=1, seed=3).json
    assert drawn["choices"][0]["text"] == greedy


def test_penalties_make_tokens_come_once_and_change_nobody_else(server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    before = server.client.complete(**fields).json["choices"]
    for penalty in ({"repetition_penalty": 100}, {"presence_penalty": 2, "frequency_penalty": 2}):
        names = server.client.complete(**fields, **penalty).json["choices"][0]["logprobs"]["tokens"]
        assert len(set(names)) >= len(set(before[0]["logprobs"]["tokens"]))
        assert names != before[0]["logprobs"]["tokens"]
    assert server.client.complete(**fields).json["choices"] == before
    neutral: dict[str, Any] = {
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "logit_bias": {},
        "min_p": 0,
    }
    assert server.client.complete(**fields, **neutral).json["choices"] == before


def test_a_text_that_must_be_json_is(server: Server) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for seed in range(3):
        body = server.client.chat(
            response_format=form, max_tokens=200, temperature=1, seed=seed
        ).json
        found = json.loads(body["choices"][0]["message"]["content"])
        assert set(found) == {"ok", "n"} and found["n"] in (1, 22, 333)
        assert body["choices"][0]["finish_reason"] == "stop"


def test_nothing_is_compiled_after_the_server_is_ready(server: Server) -> None:
    assert server.client.metric("rooflight:compilations_after_ready_total") == 0
