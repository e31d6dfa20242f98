"""The book's boxes come out of the derivation: same collectives, same operands, same marks."""

import pytest

from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes, op_flops
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.algorithm import Algorithm, PricedStep, derive_algorithm

# Chapter 5: a feed-forward layer In -> Tmp -> Out. Here In is m, Tmp is up and hidden, Out is fed.
# Each entry: the collective, what waits for it, and whether the forward pass has it already.
BOOK: dict[str, tuple[list[str], list[str]]] = {
    "dp=X": (
        [],
        ["AllReduce_X dW_out async", "AllReduce_X dW_in async"],
    ),
    "fsdp=X": (
        ["AllGather_X W_in ahead", "AllGather_X W_out ahead"],
        [
            "ReduceScatter_{X,D} dW_out async",
            "AllGather_X W_out ahead",
            "ReduceScatter_{X,D} dW_in async",
            "AllGather_X W_in ahead",
        ],
    ),
    "tp=Y": (
        ["AllGather_Y m critical", "ReduceScatter_{Y,D} fed critical"],
        [
            "AllGather_Y dfed critical",
            "AllGather_Y m async saved",
            "ReduceScatter_{Y,D} dm critical",
        ],
    ),
    "fsdp=X,tp=Y": (
        [
            "AllGather_Y m critical",
            "AllGather_X W_in ahead",
            "AllGather_X W_out ahead",
            "ReduceScatter_{Y,D} fed critical",
        ],
        [
            "AllGather_Y dfed critical",
            "ReduceScatter_{X,D} dW_out async",
            "AllGather_X W_out ahead",
            "AllGather_Y m async saved",
            "ReduceScatter_{X,D} dW_in async",
            "AllGather_X W_in ahead",
            "ReduceScatter_{Y,D} dm critical",
        ],
    ),
}


def derive(
    model: str,
    layout: str,
    parts: tuple[str, ...],
    *,
    on: str = "v5p:4x4x4",
    mesh: str = "X=16,Y=4",
    batch: int = 64,
    seq: int = 2048,
    block: int = 0,
) -> Algorithm:
    graph = model_graph(load_model(model))
    return derive_algorithm(
        graph,
        [op for op in graph.ops if op.part in parts and op.block == block],
        parse_layout(layout),
        mesh=parse_mesh(mesh, on=on),
        dims=dim_sizes(graph, batch=batch, seq=seq),
        dtype=DTYPES["bf16"],
    )


def shown(lines: tuple[PricedStep, ...]) -> list[str]:
    return [
        f"{str(x.step).split('[')[0]} {x.waits}{' saved' if x.saved else ''}"
        for x in lines
        if x.step.is_collective
    ]


@pytest.mark.parametrize("layout", BOOK)
def test_the_boxes_of_chapter_5_are_derived(layout: str) -> None:
    algorithm = derive("gpt3-175b", layout, ("mlp",))
    assert (shown(algorithm.forward), shown(algorithm.backward)) == BOOK[layout]


def test_a_gradient_of_three_uses_is_summed_before_it_is_scattered() -> None:
    """Queries, keys and values all read h; their terms of dh are added, then moved once."""
    lines = derive("llama3-70b", "fsdp=X,tp=Y", ("attention",)).backward
    terms = [x for x in lines if x.step.op == "einsum" and x.step.output.name == "dh"]
    moved = [x for x in lines if x.step.is_collective and x.step.output.name == "dh"]
    assert len(terms) == 3 and len(moved) == 1
    assert lines.index(moved[0]) > lines.index(terms[-1])


def test_an_activation_is_gathered_once_for_all_that_read_it() -> None:
    forward = derive("llama3-70b", "fsdp=X,sp=Y", ("attention", "mlp")).forward
    gathered = [str(x.step.output) for x in forward if x.step.op == "all_gather"]
    assert gathered.count("h[B_X,T,D]") == 1 and gathered.count("m[B_X,T,D]") == 1


def test_experts_exchange_tokens_twice_each_way() -> None:
    algorithm = derive(
        "mixtral-8x7b",
        "fsdp=X,ep=X",
        ("router", "experts"),
        on="v5e:4x4",
        mesh="X=8,Y=2",
        seq=4096,
    )
    for lines in (algorithm.forward, algorithm.backward):
        exchanged = [x for x in lines if x.step.op == "all_to_all" and not x.saved]
        assert [x.waits for x in exchanged] == ["critical", "critical"]


def test_shared_and_routed_experts_do_not_mix_their_gradients() -> None:
    algorithm = derive(
        "deepseek-v3", "fsdp=X,ep=X", ("router", "experts", "shared"), block=1, batch=64, seq=4096
    )
    made = {x.step.output.name for x in algorithm.backward if x.step.op == "einsum"}
    assert {"dW_in", "dW_out", "dW_gate", "dW_router", "dsent_x", "dm"} <= made
    grads = [x.step.output for x in algorithm.backward if x.step.output.name == "dW_out"]
    assert {t.dims for t in grads} == {("E", "Fe", "D"), ("Fs", "D")}


def test_context_parallelism_gathers_keys_and_values() -> None:
    forward = derive("llama3-8b", "fsdp=X,cp=Y", ("attention",), seq=8192).forward
    gathered = {x.step.output.name for x in forward if "Y" in x.step.axes}
    assert gathered == {"k", "v"}


@pytest.mark.parametrize("layout", ["ws=X,tp=Y", "tp=Y,ws=X"])
@pytest.mark.parametrize("tokens", [512, 2**20])
def test_2d_weight_stationary_moves_activations_only(layout: str, tokens: int) -> None:
    """Chapter 7: gather over Y, sum over X, scatter over Y; no weight ever leaves its chip."""
    algorithm = derive("gpt3-175b", layout, ("mlp",), batch=tokens // 512, seq=512)
    assert shown(algorithm.forward) == [
        "AllGather_Y m critical",
        "AllReduce_X up critical",
        "ReduceScatter_{Y,D} fed critical",
    ]
    assert shown(algorithm.backward) == [
        "AllGather_Y dfed critical",
        "AllReduce_X dhidden critical",
        "AllGather_Y m async saved",
        "ReduceScatter_{Y,D} dm critical",
    ]


@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-175b", "gemma2-27b"])
def test_ulysses_exchanges_queries_keys_values_and_the_result(model: str) -> None:
    """Four all-to-alls each way; gradients of weights, replicated over Y, are summed besides."""
    algorithm = derive(model, "fsdp=X,ulysses=Y", ("attention", "mlp"), seq=8192)
    over_y = [
        [x for x in lines if "Y" in x.step.axes and x.waits == "critical" and not x.saved]
        for lines in (algorithm.forward, algorithm.backward)
    ]
    assert [shown(tuple(lines)) for lines in over_y] == [
        [
            "AllToAll_{Y,K} q critical",
            "AllToAll_{Y,K} k critical",
            "AllToAll_{Y,K} v critical",
            "AllToAll_{Y,T} attended_heads critical",
        ],
        [
            "AllToAll_{Y,K} dattended_heads critical",
            "AllToAll_{Y,S} dv critical",
            "AllToAll_{Y,T} dq critical",
            "AllToAll_{Y,S} dk critical",
        ],
    ]


def test_ulysses_on_a_latent_gathers_only_the_rotary_key_that_all_heads_share() -> None:
    forward = derive("deepseek-v3", "fsdp=X,ulysses=Y", ("attention",), seq=8192).forward
    moved = {x.step.output.name: x.step.op for x in forward if "Y" in x.step.axes}
    assert moved.pop("k_rope") == "all_gather"
    assert moved == dict.fromkeys(("q", "k", "q_rope", "v", "attended_heads"), "all_to_all")


@pytest.mark.parametrize("model", ["llama3-8b", "palm-540b"])
@pytest.mark.parametrize("scheme", ["tp", "sp", "mp", "ulysses"])
def test_more_ways_than_kv_heads_are_refused_and_the_hint_says_how_many(
    model: str, scheme: str
) -> None:
    kv_heads = model_graph(load_model(model)).sizes["K"]
    with pytest.raises(RooflightError, match=f"K={kv_heads} does not split 16 ways") as caught:
        derive(model, f"fsdp=X,{scheme}=Y", ("attention",), mesh="X=4@z,Y=16@x+y", seq=8192)
    assert caught.value.hint.endswith(f"split it by {kv_heads}")


@pytest.mark.parametrize("model", ["palm-540b", "deepseek-v3"])
@pytest.mark.parametrize("layout", ["fsdp=X,cp=Y", "fsdp=X,ws=Y", "ws=XY"])
def test_layouts_that_split_no_heads_serve_one_kv_head_and_a_latent(
    model: str, layout: str
) -> None:
    algorithm = derive(model, layout, ("attention",), mesh="X=4@z,Y=16@x+y", seq=8192)
    assert all(x.price.expected_s > 0 for x in algorithm.forward if x.price.op)


@pytest.mark.parametrize("layout", ["fsdp=X,tp=Y", "ws=X,tp=Y", "fsdp=X,ulysses=Y"])
def test_a_stage_derives_its_layers_as_if_it_were_alone(layout: str) -> None:
    alone = derive("llama3-8b", layout, ("attention", "mlp"))
    mesh = "P=2@dcn,X=16,Y=4"
    staged = derive(
        "llama3-8b", f"pp=P,{layout}", ("attention", "mlp"), on="2*v5p:4x4x4", mesh=mesh
    )
    assert [x.price for x in staged.forward] == [x.price for x in alone.forward]
    assert [x.price for x in staged.backward] == [x.price for x in alone.backward]


@pytest.mark.parametrize(
    "layout",
    [*BOOK, "fsdp=X,sp=Y", "dp=X,mp=Y", "fsdp=X,cp=Y", "ws=X,tp=Y", "ws=Y", "fsdp=X,ulysses=Y"],
)
def test_every_gradient_arrives_in_its_tensors_own_sharding(layout: str) -> None:
    rules = parse_layout(layout)
    graph = model_graph(load_model("gpt3-175b"))
    algorithm = derive("gpt3-175b", layout, ("attention", "mlp"))
    last = {x.step.output.name: x.step.output for x in algorithm.backward}
    for param in graph.params:
        if param.part in ("attention", "mlp") and f"d{param.tensor.name}" in last:
            assert last[f"d{param.tensor.name}"].axes == rules.of_weight(param.tensor).axes
    weights = {p.tensor.name for p in graph.params}
    assert {"dW_q", "dW_o", "dW_in", "dW_out"} <= {f"d{w}" for w in weights} & set(last)


@pytest.mark.parametrize("text", ["", "tp", "tp=", "qp=X", "tp=x y", "fsdp=X,cp=X", "tp=Y,dp=Y"])
def test_a_layout_that_is_none_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(RooflightError) as caught:
        parse_layout(text)
    assert caught.value.hint


def test_attention_is_priced_as_a_kernel_that_keeps_its_scores() -> None:
    """Causal: half the pairs; the scores, T x S a head, are never written to memory."""
    algorithm = derive("llama3-8b", "fsdp=X", ("attention",), mesh="X=64", seq=8192)
    scores = next(x for x in algorithm.forward if x.op == "attention.scores")
    graph = model_graph(load_model("llama3-8b"))
    sizes = dim_sizes(graph, batch=64, seq=8192)
    pairs = 8192 * 8193 // 2
    assert scores.price.flops == pytest.approx(2 * pairs * 32 * sizes["H"])
    assert scores.price.nbytes == 2 * 8192 * (32 + 8) * sizes["H"]
    assert scores.price.binds == "MXU bf16"


@pytest.mark.parametrize("layout", ["fsdp=X,sp=Y", "fsdp=X,cp=Y", "fsdp=X,ulysses=Y"])
def test_the_matmuls_of_a_layer_are_the_flops_of_the_graph(layout: str) -> None:
    """Three times the forward FLOPs, causal, spread over all chips."""
    graph = model_graph(load_model("llama3-8b"))
    algorithm = derive("llama3-8b", layout, ("attention", "mlp"), seq=4096)
    sizes = dim_sizes(graph, batch=64, seq=4096)
    layer = [op for op in graph.ops if op.part in ("attention", "mlp")]
    wanted = 3 * sum(op_flops(op, sizes, causal=True) for op in layer) / 64
    done = sum(x.price.flops for x in (*algorithm.forward, *algorithm.backward))
    assert done == pytest.approx(wanted)
