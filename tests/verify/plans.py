"""Plans of small models with real shapes, to expect and to compile."""

from dataclasses import replace
from importlib.resources import files

from rooflight.models.presets import load_model
from rooflight.models.spec import Mlp, ModelSpec
from rooflight.plan.file.record import Plan, from_json

EXAMPLE = from_json((files("rooflight.compile") / "example_plan.json").read_text())


def small_llama() -> ModelSpec:
    """Two layers, a quarter of the width."""
    model = load_model("llama3-8b")
    run = model.layers[0]
    block = run.blocks[0]
    assert isinstance(block.mlp, Mlp)
    thin = replace(
        block,
        attention=replace(block.attention, num_heads=8, num_kv_heads=4),
        mlp=replace(block.mlp, width=4096),
    )
    runs = (replace(run, times=2, blocks=(thin,)),)
    return replace(model, d_model=1024, vocab=8192, layers=runs)


def small_plan(layout: str, mesh: str, *, remat: str = "block", microbatches: int = 1) -> Plan:
    """64 sequences of 1,024 tokens on 16 chips."""
    return replace(
        EXAMPLE,
        model=small_llama(),
        slice="v5e:4x4",
        batch=64,
        seq=1024,
        recipe="f32",
        layout=layout,
        mesh=mesh,
        remat=remat,
        microbatches=microbatches,
    )
