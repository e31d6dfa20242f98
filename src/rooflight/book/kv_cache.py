"""Recipes about KV caches: bytes of a token, of a sequence, and how many sequences fit."""

from collections.abc import Mapping

from rooflight.book.derivation import Derivation, Line, Recipe, slice_of
from rooflight.book.entry import Entry, Value
from rooflight.book.models import model_of
from rooflight.book.training import hbm_bytes, params_bytes
from rooflight.dtypes import DTYPES
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import kv_bytes, kv_bytes_per_token


def _cache(e: Entry) -> int:
    """Bytes of the cache of one sequence of S tokens."""
    return kv_bytes(model_graph(model_of(e)), batch=1, seq=e.whole("S"), dtype=e.dtype())


def _kv_per_token(e: Entry) -> Derivation:
    """By dtype where the values are named so, else in the dtype of the question."""
    graph = model_graph(model_of(e))
    dtypes = {n: e.dtype() if n == "bytes" else DTYPES[n] for n in e.expected}
    values: dict[str, Value] = {n: kv_bytes_per_token(graph, d) for n, d in dtypes.items()}
    lines = tuple(Line(f"keys and values in {dtypes[n].name}", v, "B") for n, v in values.items())
    return Derivation(values, lines)


def _kv_of_a_sequence(e: Entry) -> Derivation:
    nbytes = _cache(e)
    return Derivation({"bytes": nbytes}, (Line("keys and values of a sequence", nbytes, "B"),))


def _kv_of_a_batch(e: Entry) -> Derivation:
    one = _cache(e)
    values: dict[str, Value] = {"per_seq": one, "batch_total": one * e.whole("batch")}
    return Derivation(values, (Line("keys and values of a sequence", one, "B"),))


def _kv_over_weights(e: Entry) -> Derivation:
    """From how many sequences on the caches outweigh the weights."""
    one, weights = _cache(e), params_bytes(e)
    lines = (Line("one cache", one, "B"), Line("weights", weights, "B"))
    return Derivation({"bytes": one, "count_exceeding_weights": weights // one + 1}, lines)


def _most_sequences(e: Entry) -> Derivation:
    on = slice_of(e)
    memory, weights = on.num_chips * hbm_bytes(on.chip), params_bytes(e)
    one = _cache(e)
    lines = (Line("HBM", memory, "B"), Line("weights", weights, "B"), Line("one cache", one, "B"))
    return Derivation({"max_batch": (memory - weights) // one}, lines)


RECIPES: Mapping[str, Recipe] = {
    "transformers.kv_8k_mha": _kv_of_a_sequence,
    "transformers.q1_kv": _kv_per_token,
    "inference.llama13b_kv_8k": _kv_over_weights,
    "inference.llama13b_oom": _most_sequences,
    "inference.q1_kv": _kv_per_token,
    "applied_inference.kv_per_token_70b": _kv_per_token,
    "applied_inference.kv_32k_seq": _kv_of_a_batch,
    "applied_inference.kv_size_columns": _kv_per_token,
}
