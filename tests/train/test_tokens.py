"""Tokens on disk: text comes back, records are cut right, damage is named."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rooflight.cli.main import main
from rooflight.errors import ParseError, UsageError
from rooflight.train.tokens import Records, data_digest, read_index, write_tokens

from .small_run import write_text


def test_the_text_comes_back_from_its_tokens(tmp_path: Path) -> None:
    text = write_text(tmp_path / "a.txt", words=500)
    other = tmp_path / "b.txt"
    other.write_text("Grüße, 世界\n" * 50)
    index = write_tokens([text, other], tmp_path / "tokens", vocab=400)
    ids = np.fromfile(tmp_path / "tokens" / index.files[0], index.dtype)
    words = Tokenizer.from_file(str(tmp_path / "tokens" / "tokenizer.json"))
    whole = words.decode(ids.tolist(), skip_special_tokens=False)
    assert whole == "".join(f"{p.read_text()}<|endoftext|>" for p in (text, other))
    assert index.vocab <= 400 and index.num_tokens == len(ids)


def test_a_tokenizer_of_ones_own_is_taken(tmp_path: Path) -> None:
    text = write_text(tmp_path / "a.txt", words=500)
    first = write_tokens([text], tmp_path / "one", vocab=300)
    repeated = write_tokens([text], tmp_path / "two", tokenizer=tmp_path / "one" / "tokenizer.json")
    assert repeated == first


def test_the_loss_of_knowing_only_frequencies_is_their_entropy(tmp_path: Path) -> None:
    index = write_tokens([write_text(tmp_path / "a.txt", words=500)], tmp_path / "t", vocab=300)
    ids = np.fromfile(tmp_path / "t" / index.files[0], index.dtype)
    share = [count / len(ids) for count in np.unique_counts(ids).counts]
    assert index.unigram_nats == pytest.approx(-sum(p * math.log(p) for p in share))


def test_records_are_consecutive_and_overlap_by_the_token_to_predict(tokens: Path) -> None:
    records = Records(tokens, 32)
    index = read_index(tokens)
    ids = np.fromfile(tokens / index.files[0], index.dtype)
    assert len(records) == (len(ids) - 1) // 32
    for number in (0, 1, len(records) - 1):
        assert np.array_equal(records[number], ids[32 * number : 32 * number + 33])


def test_a_folder_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    index = write_tokens([write_text(tmp_path / "a.txt", words=500)], tmp_path / "t", vocab=300)
    path = tmp_path / "t" / index.files[0]
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ParseError, match="its index says"):
        Records(tmp_path / "t", 32)
    with pytest.raises(UsageError, match="not one record"):
        write_tokens([write_text(tmp_path / "b.txt", words=5)], tmp_path / "u", vocab=300)
        Records(tmp_path / "u", 1000)


def _read_all(folder: Path) -> None:
    records = Records(folder, 32)
    for number in range(len(records)):
        records[number]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_byte_that_changed_is_never_trained_on(tokens: Path, tmp_path: Path, data: Any) -> None:
    """Of the tokens, or of the sums that would tell."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(tokens, copy)
    _read_all(copy)
    path = data.draw(st.sampled_from(sorted(copy.glob("tokens-*"))))
    held = bytearray(path.read_bytes())
    last = 2 * 32 * len(Records(copy, 32)) if path.suffix == ".bin" else len(held)
    held[data.draw(st.integers(0, last - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(held)
    with pytest.raises(ParseError, match="not those that were written"):
        _read_all(copy)


def test_text_of_the_same_counts_in_another_order_is_other_data(tmp_path: Path) -> None:
    tokenizer, digests = None, set[str]()
    for number, text in enumerate(("ab ba ab", "ba ab ab")):
        path, folder = tmp_path / "a.txt", tmp_path / str(number)
        path.write_text(text)
        write_tokens([path], folder, vocab=260, tokenizer=tokenizer)
        tokenizer = folder / "tokenizer.json"
        digests.add(data_digest(folder))
    assert len(digests) == 2


def test_the_verb_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path / "a.txt", words=500)
    assert main(["tokens", str(text), "--out", str(tmp_path / "t"), "--vocab", "300"]) == 0
    assert "tokens of 300 kinds" in capsys.readouterr().out
    assert main(["tokens", str(tmp_path / "no.txt"), "--out", str(tmp_path / "t")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["tokens", str(text)]) == 2
