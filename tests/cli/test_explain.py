"""`rooflight explain` of a pipeline: the layer's own algorithm, and how many stages there are."""

import json

from .command import run

LAYER = (
    *("explain", "train", "gpt3-175b", "--on", "v5p:4x4x8"),
    *("--batch", "64Ki", "--seq", "2048", "--part", "mlp"),
)


def test_a_stage_is_explained_as_the_layer_it_holds() -> None:
    mesh = ("--mesh", "X=4,Y=16,P=2")
    staged = run([*LAYER, *mesh, "--layout", "pp=P,fsdp=X,tp=Y"])
    alone = run([*LAYER, *mesh, "--layout", "fsdp=X,tp=Y"])
    assert "one of 2 pipeline stages" in staged.out and "stages" not in alone.out
    assert staged.out.partition("forward\n")[2] == alone.out.partition("forward\n")[2] != ""


def test_the_document_counts_the_stages() -> None:
    for layout, stages in (("pp=P,fsdp=X,tp=Y", 2), ("fsdp=X,tp=Y", 1), ("pp=PX,tp=Y", 8)):
        done = run([*LAYER, "--mesh", "X=4,Y=16,P=2", "--layout", layout, "--json"])
        assert json.loads(done.out)["stages"] == stages


def test_stages_on_an_axis_that_the_mesh_lacks_are_a_usage_error() -> None:
    done = run([*LAYER, "--mesh", "X=8,Y=16", "--layout", "pp=P,fsdp=X,tp=Y"])
    assert done.code == 2 and "unknown mesh axis 'P'" in done.err and "--mesh P=" in done.err


def test_degrees_are_explained_and_a_ring_goes_in_hops() -> None:
    asked = "explain train llama3-8b --on h100:8x8 --batch 1Mi --seq 32k --part attention --layout"
    plain = run(f"{asked} tp=2,cp=8,dp=4".split()).out
    around = run(f"{asked} tp=2,cp=8:ring,dp=4".split()).out
    assert " in hops," not in plain and "in hops beside its matmul" in around
    assert "cp=W:ring" in around and "in hops, 0 s that can run ahead" in around
    mesh = "W=8@leaf,Z=4@node4,Y=2@node2"
    by_axes = run(f"{asked} dp=Z,cp=W:ring,sp=Y --mesh {mesh}".split()).out
    assert by_axes == around
    refused = run(f"{asked} tp=2,dp=32 --mesh {mesh}".split())
    assert refused.code == 2 and "degrees make their own mesh" in refused.err
