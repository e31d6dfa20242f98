"""Tokens to text a piece at a time: nothing lost, nothing doubled, no half characters."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from rooflight.errors import UsageError
from rooflight.serve.chat.text import Decoder, TextStream
from rooflight.serve.chat.tokens import Tokenizer, load_tokenizer

from .tiny_model import VOCAB, make_tokenizer

BYTE_LEVEL = make_tokenizer()
WORDS = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581the", "\u2581cat", "s", "\u2581"]


def byte_level() -> Tokenizer:
    from rooflight.serve.chat.tokens import _bytes_of  # pyright: ignore[reportPrivateUsage]

    special = frozenset({0, 1, 2})
    return Tokenizer(BYTE_LEVEL, Path(), frozenset({1}), special, _bytes_of(BYTE_LEVEL))


def word_level() -> Tokenizer:
    """As Llama 2 and Gemma have it: words with spaces before them, bytes as a last resort."""
    vocab = {word: id for id, word in enumerate(WORDS)}
    library = Library(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])  # pyright: ignore
    return Tokenizer(library, Path(), frozenset(), frozenset(), None)


TOKENIZERS = {"bytes": byte_level(), "words": word_level()}


def in_pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    decoder = Decoder(tokenizer)
    return "".join([*(decoder.push([token]) for token in tokens), decoder.flush()])


@settings(max_examples=150)
@given(st.lists(st.integers(0, VOCAB - 1), max_size=40))
def test_any_tokens_stream_to_what_the_library_decodes(tokens: list[int]) -> None:
    tokenizer = TOKENIZERS["bytes"]
    whole = tokenizer.decode([t for t in tokens if t < BYTE_LEVEL.get_vocab_size()])
    assert in_pieces(tokenizer, tokens) == whole


@settings(max_examples=150)
@given(st.text(max_size=30), st.sampled_from(("bytes", "words")))
def test_any_text_comes_back_through_its_bytes(text: str, kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    if kind == "bytes":
        tokens = list(tokenizer.encode(text, with_special=False))
    else:
        tokens = [1 + byte for byte in text.encode()]
        text = text.removeprefix(" ")  # its decoder strips the space that words begin with
    assert in_pieces(tokenizer, tokens) == text


def test_words_keep_the_spaces_between_them() -> None:
    the, cat, s, space = (WORDS.index(w) for w in ("\u2581the", "\u2581cat", "s", "\u2581"))
    assert in_pieces(TOKENIZERS["words"], [the, cat, s, space, the]) == "the cats  the"


def test_a_character_of_four_tokens_comes_with_the_last() -> None:
    tokenizer = TOKENIZERS["words"]
    decoder = Decoder(tokenizer)
    pieces = [decoder.push([1 + byte]) for byte in "\U0001f642".encode()]
    assert pieces == ["", "", "", "\U0001f642"]


def test_endless_broken_bytes_are_not_held_for_ever() -> None:
    for tokenizer in TOKENIZERS.values():
        token = 1 + 0x80 if tokenizer.bytes_of is None else tokenizer.bytes_of.index(b"\x80")
        decoder = Decoder(tokenizer)
        assert len("".join(decoder.push([token]) for _ in range(100))) > 80


_STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=250)
@given(st.text("abc", max_size=30), _STOPS, st.lists(st.integers(1, 3), min_size=30, max_size=30))
def test_a_stop_string_is_found_across_pieces(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    tokenizer = TOKENIZERS["words"]
    stream, given_out, rest = TextStream(tokenizer, stops), "", text
    for size in sizes:
        part, rest = rest[:size], rest[size:]
        tokens = [1 + ord(c) for c in part]
        given_out += stream.push(tokens, is_last=not rest)
        if stream.is_stopped or not rest:
            break
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stream.is_stopped == bool(ends)
    assert given_out == (text[: min(ends)[1]] if ends else text)  # the first that is complete
    assert stream.length == len(given_out)


def test_text_that_may_begin_a_stop_string_is_held_and_then_given() -> None:
    stream = TextStream(TOKENIZERS["words"], ["stop"])
    pieces = [
        stream.push([1 + ord(c) for c in part], is_last=part == "") for part in ("a st", "op?", "")
    ]
    assert pieces == ["a ", "", ""] and stream.is_stopped
    stream = TextStream(TOKENIZERS["words"], ["stop"])
    assert stream.push([1 + ord(c) for c in "a sto"], is_last=False) == "a "
    assert stream.push([1 + ord("r")], is_last=False) == "stor"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="tokenizer"):
        load_tokenizer(tmp_path)


def test_a_folder_says_which_tokens_end_a_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.stop_tokens == {1} and tokenizer.special == {0, 1, 2}
    assert tokenizer.bytes_of is not None and tokenizer.piece(0) == b"<|begin|>"
