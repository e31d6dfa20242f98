"""Plans to test with: one whole plan, and random ones."""

from dataclasses import replace

from hypothesis import strategies as st

from rooflight.models.presets import load_model, model_names
from rooflight.plan.file.record import Alternative, Decision, MemoryUse, Mfu, Part, Plan, Time


def sample_plan() -> Plan:
    """Llama 3 70B on 512 chips of v5p, with round numbers for what costs time."""
    return Plan(
        version="0.1.0",
        model=load_model("llama3-70b"),
        slice="v5p:8x8x8",
        batch=512,
        seq=8192,
        dtype="bf16",
        recipe="f32",
        overlap="sum",
        layout="fsdp=X,sp=Y",
        mesh="X=64@x+y,Y=8@z",
        stages=1,
        schedule=None,
        microbatches=1,
        virtual=1,
        remat="block",
        zero=0,
        framework="rooflight",
        time=Time(10.0, 9.5, 13.0, 9.5, 1.5, 0.0, {"X": 0.5, "Y": 3.0}, {"critical": 3.5}),
        memory=MemoryUse(0, (Part("weights", 2 * 10**9, "f32 under fsdp=X,sp=Y"),), 95 * 10**9),
        mfu=Mfu(0.72, "causal"),
        tokens_per_s=419430.4,
        binds="matmuls",
        choices=(Decision("remat", "block", "dots does not fit"),),
        alternatives=(Alternative("fsdp=X", "X=512@x+y+z", "", "block", 10.5, 3, "0.5 s slower"),),
        searched={"named": 100, "dividing": 50},
        sources={"time": "spec", "memory": "spec"},
    )


_texts = st.text(max_size=8)
_seconds = st.floats(0, 1e6)
_bytes = st.integers(0, 10**15)
_seconds_of = st.dictionaries(_texts, _seconds, max_size=3)


@st.composite
def _times(draw: st.DrawFn) -> Time:
    lower, more, rest = draw(_seconds), draw(_seconds), draw(_seconds)
    expected = lower + more
    by_axes, by_waits = draw(_seconds_of), draw(_seconds_of)
    return Time(expected, lower, expected + rest, lower, more, rest, by_axes, by_waits)


_parts = st.builds(Part, _texts, _bytes, _texts)
_alternatives = st.builds(Alternative, _texts, _texts, _texts, _texts, _seconds, _bytes, _texts)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan: other models, numbers and reasons, and a pipeline or none."""
    stages, microbatches = draw(st.sampled_from((1, 4))), draw(st.integers(1, 9))
    return replace(
        sample_plan(),
        model=load_model(draw(st.sampled_from(model_names()))),
        stages=stages,
        schedule="1f1b" if stages > 1 else None,
        batch=microbatches * draw(st.integers(1, 99)),
        microbatches=microbatches,
        zero=draw(st.sampled_from((0, 1, 2))),
        time=draw(_times()),
        memory=draw(st.builds(MemoryUse, st.integers(0, 9), st.lists(_parts).map(tuple), _bytes)),
        mfu=draw(st.builds(Mfu, st.floats(0, 1), _texts)),
        choices=tuple(draw(st.lists(st.builds(Decision, _texts, _texts, _texts), max_size=3))),
        alternatives=tuple(draw(st.lists(_alternatives, max_size=3))),
        searched=draw(st.dictionaries(_texts, _bytes, max_size=3)),
        sources=draw(st.dictionaries(_texts, st.sampled_from(("spec", "measured")), max_size=3)),
    )
