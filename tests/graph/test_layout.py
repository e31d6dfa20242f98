"""A layout is data: what each word splits, how words combine, and which combinations are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.algebra.notation import Tensor, parse_tensor
from rooflight.errors import RooflightError, ShardingError
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import SCHEMES, Layout, parse_layout
from rooflight.models.presets import load_model

WEIGHTS = ("W_q[D,K,G,H]", "W_in[D,F]", "W_out[F,D]")
ACTIVATIONS = ("x[B,T,D]", "q[B,T,K,G,H]", "scores[B,T,S,K,G]", "up[B,T,F]")

# What each word makes of the weights and activations above.
SPLITS = {
    "dp=X": "W_q[D,K,G,H] W_in[D,F] W_out[F,D]"
    " x[B_X,T,D] q[B_X,T,K,G,H] scores[B_X,T,S,K,G] up[B_X,T,F]",
    "fsdp=X": "W_q[D_X,K,G,H] W_in[D_X,F] W_out[F,D_X]"
    " x[B_X,T,D] q[B_X,T,K,G,H] scores[B_X,T,S,K,G] up[B_X,T,F]",
    "tp=Y": "W_q[D,K_Y,G,H] W_in[D,F_Y] W_out[F_Y,D]"
    " x[B,T,D_Y] q[B,T,K_Y,G,H] scores[B,T,S,K_Y,G] up[B,T,F_Y]",
    "sp=Y": "W_q[D,K_Y,G,H] W_in[D,F_Y] W_out[F_Y,D]"
    " x[B,T_Y,D] q[B,T,K_Y,G,H] scores[B,T,S,K_Y,G] up[B,T,F_Y]",
    "mp=Y": "W_q[D,K_Y,G,H] W_in[D,F_Y] W_out[F_Y,D]"
    " x[B,T,D] q[B,T,K_Y,G,H] scores[B,T,S,K_Y,G] up[B,T,F_Y]",
    "ws=X": "W_q[D_X,K,G,H] W_in[D_X,F] W_out[F,D_X]"
    " x[B,T,D_X] q[B,T,K,G,H] scores[B,T,S,K,G] up[B,T,F]",
    "cp=Y": "W_q[D,K,G,H] W_in[D,F] W_out[F,D]"
    " x[B,T_Y,D] q[B,T_Y,K,G,H] scores[B,T_Y,S,K,G] up[B,T_Y,F]",
    "ulysses=Y": "W_q[D,K,G,H] W_in[D,F] W_out[F,D]"
    " x[B,T_Y,D] q[B,T_Y,K,G,H] scores[B,T,S,K_Y,G] up[B,T_Y,F]",
    "ws=X,tp=YZ": "W_q[D_X,K_YZ,G,H] W_in[D_X,F_YZ] W_out[F_YZ,D_X]"
    " x[B,T,D_XYZ] q[B,T,K_YZ,G,H] scores[B,T,S,K_YZ,G] up[B,T,F_YZ]",
    "ulysses=Y,tp=Z": "W_q[D,K_Z,G,H] W_in[D,F_Z] W_out[F_Z,D]"
    " x[B,T_Y,D_Z] q[B,T_Y,K_Z,G,H] scores[B,T,S,K_ZY,G] up[B,T_Y,F_Z]",
    "fsdp=X,ws=Z": "W_q[D_ZX,K,G,H] W_in[D_ZX,F] W_out[F,D_ZX]"
    " x[B_X,T,D_Z] q[B_X,T,K,G,H] scores[B_X,T,S,K,G] up[B_X,T,F]",
}
GRAPHS = [model_graph(load_model(m)) for m in ("llama3-8b", "deepseek-v3", "gpt-oss-20b")]


def placed(layout: Layout) -> list[Tensor]:
    """Every tensor of three models that differ most, as the layout splits it."""
    return [
        *(layout.of_weight(p.tensor) for g in GRAPHS for p in g.params),
        *(layout.of_activation(op.contraction.result) for g in GRAPHS for op in g.ops),
    ]


@pytest.mark.parametrize("text", SPLITS)
def test_each_word_splits_what_it_says(text: str) -> None:
    layout = parse_layout(text)
    weights = [str(layout.of_weight(parse_tensor(t))) for t in WEIGHTS]
    activations = [str(layout.of_activation(parse_tensor(t))) for t in ACTIVATIONS]
    assert " ".join(weights + activations) == SPLITS[text]


words = st.permutations(list(SCHEMES)).flatmap(
    lambda order: st.lists(
        st.sampled_from(["X", "Y", "Z", "YZ", "{data}"]), min_size=1, max_size=4
    ).map(lambda axes: ",".join(f"{w}={a}" for w, a in zip(order, axes, strict=False)))
)


@given(words)
def test_a_layout_reads_back_and_splits_no_tensor_twice_over_an_axis(text: str) -> None:
    """`Tensor` itself refuses an axis that splits two dims."""
    try:
        layout = parse_layout(text)
    except ShardingError as refused:
        assert refused.hint
        return
    assert parse_layout(layout.text) == layout
    used = {axis for tensor in placed(layout) for axis in tensor.sharded_over}
    assert used <= set(layout.split_over)
    assert not used & set(layout.stages)


@given(words)
def test_stages_leave_every_tensor_as_it_is(text: str) -> None:
    try:
        alone = parse_layout(text)
    except ShardingError:
        return
    staged = parse_layout(f"{text},pp=P2")
    assert staged.stages == (*alone.stages, "P2") and staged.split_over == alone.split_over
    assert placed(staged) == placed(alone)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ws=X,tp=Y", "tp=Y,ws=X"),
        ("tp=Z,ulysses=Y", "ulysses=Y,tp=Z"),
        ("fsdp=X,ws=Z", "ws=Z,fsdp=X"),
    ],
)
def test_the_order_of_words_does_not_matter_where_one_order_needs_a_shuffle(
    one: str, other: str
) -> None:
    assert placed(parse_layout(one)) == placed(parse_layout(other))


def test_axes_of_many_letters_stand_in_braces() -> None:
    layout = parse_layout("fsdp={replica,data}, tp=model, pp={stage}")
    assert str(layout.of_weight(parse_tensor("W[D,F]"))) == "W[D_{replica,data},F_{model}]"
    assert layout.stages == ("stage",) and layout.split_over == ("data", "model", "replica")


@pytest.mark.parametrize("text", ["fsdp=X,pp=X", "pp=P,pp=P", "pp=PP", "tp=Y,pp=PY", "pp=X,ep=X"])
def test_an_axis_of_stages_serves_nothing_else(text: str) -> None:
    with pytest.raises(ShardingError, match="pipeline stages") as caught:
        parse_layout(text)
    assert parse_layout(caught.value.hint.rpartition(" ")[2]).stages == ("P",)


@pytest.mark.parametrize(
    "text", ["ws=X,tp=X", "ws=X,fsdp=X", "cp=Y,ulysses=Y", "mp=Y,ulysses=Y", "mp=YY", "ep=X,ep=X"]
)
def test_a_dim_is_split_once_over_an_axis(text: str) -> None:
    with pytest.raises(RooflightError, match="twice over axis") as caught:
        parse_layout(text)
    assert caught.value.hint
