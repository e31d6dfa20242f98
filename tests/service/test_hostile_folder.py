"""A model folder that means harm: each way ends in a sentence, soon."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.models.huggingface.read import read_hf_config
from rooflight.program.checkpoint.files import open_checkpoint
from rooflight.serve.chat.bounded import CPU_S
from rooflight.serve.chat.chat_template import ChatTemplate, load_template
from rooflight.serve.chat.tokens import load_tokenizer
from rooflight.serve.server.problem import ApiError

from .tiny_model import make_folder

MESSAGES = [{"role": "user", "content": "hello"}]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def change(path: Path, how: Change) -> None:
    found = json.loads(path.read_text())
    how(found)
    path.write_text(json.dumps(found))


def with_template(model: Path, source: str) -> ChatTemplate | None:
    change(model / "tokenizer_config.json", lambda c: c.update(chat_template=source))
    return load_template(model)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "{{ (messages | length + 8) ** (9**9) }}",
        "{% set x = namespace(a='aaaa') %}{% for i in range(99) %}"
        "{% set x.a = x.a ~ x.a %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content.ljust(10**12) }}",
        "{{ '%0999999999d' % (messages | length) }}",
        "{{ range(99999) | list | string | center(10**9) }}",
    ],
)
def test_a_template_that_takes_all_there_is_costs_its_own_process(model: Path, source: str) -> None:
    template = with_template(model, source)
    assert template is not None
    before = time.process_time()
    try:
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                template.render(MESSAGES, most=1000)
            assert caught.value.status == 400
    finally:
        template.stop()
    assert time.process_time() - before < CPU_S


@pytest.mark.parametrize("source", ["{{ 9**(9**9) }}", "{{ '%0999999999d' % 1 }}", "{% if " * 9999])
def test_a_template_that_takes_too_long_to_parse_is_refused(model: Path, source: str) -> None:
    with pytest.raises(UsageError, match="does not parse"):
        with_template(model, source)


@pytest.mark.parametrize("layers", [10**7, 10**11, -1, 0, 1e300, "2", True, [2]])
def test_layers_without_end_are_refused(model: Path, layers: object) -> None:
    change(model / "config.json", lambda c: c.update(num_hidden_layers=layers))
    with pytest.raises(UsageError, match="num_hidden_layers"):
        read_hf_config(model)


@pytest.mark.parametrize("id", [2**32 - 1, 2**32, 2**31, -1])
def test_ids_that_no_vocabulary_has_are_refused(model: Path, id: int) -> None:
    added = {"id": id, "content": "<|far|>", "special": True, "normalized": False}
    added |= {"single_word": False, "lstrip": False, "rstrip": False}
    change(model / "tokenizer.json", lambda c: c["added_tokens"].append(added))
    change(model / "tokenizer.json", lambda c: c["model"]["vocab"].update({"<|far|>": id}))
    with pytest.raises(UsageError, match=r"tokenizer.json"):
        load_tokenizer(model)


@pytest.mark.parametrize("end", [-1, 2**40, "1", [1, None], {"a": 1}, 1.5, True])
def test_ends_that_are_no_ids_are_refused(model: Path, end: object) -> None:
    change(model / "config.json", lambda c: c.update(eos_token_id=end))
    with pytest.raises(UsageError, match="eos_token_id"):
        load_tokenizer(model)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b", "..", "", 5, None])
def test_weights_outside_the_folder_are_not_read(model: Path, name: object) -> None:
    index = {"weight_map": {"lm_head.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match="must be an index of safetensors files"):
        open_checkpoint(model)


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
     "generation_config.json", "chat_template.jinja", "model.safetensors.index.json"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_what_is_no_file_is_not_waited_for(model: Path, name: str, kind: str) -> None:
    path = model / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert main(["serve", str(model), "--port", "0"]) == 2
