"""Plans to export: layouts of every kind on GPUs and TPUs, with nothing else that is special."""

from dataclasses import replace

from rooflight.hardware.mesh import parse_mesh
from rooflight.models.presets import load_model
from rooflight.plan.file.record import MemoryUse, Mfu, Plan, Time


def plan_of(layout: str, mesh: str, *, on: str = "h100:8x16", model: str = "llama3.1-70b") -> Plan:
    """A plan whose recipe, remat policy and dtype every framework but Megatron-LM has."""
    return Plan(
        version="0",
        model=load_model(model),
        slice=on,
        batch=512,
        seq=4096,
        dtype="bf16",
        recipe="f32",
        overlap="sum",
        layout=layout,
        mesh=str(parse_mesh(mesh, on=on)),
        stages=1,
        schedule=None,
        microbatches=1,
        virtual=1,
        remat="block",
        zero=0,
        framework="rooflight",
        time=Time(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, {}, {}),
        memory=MemoryUse(0, (), 80 * 10**9),
        mfu=Mfu(0.5, "causal"),
        tokens_per_s=1.0,
        binds="matmuls",
        choices=(),
        alternatives=(),
        searched={},
        sources={},
    )


def piped(plan: Plan, *, stages: int, schedule: str, microbatches: int, virtual: int = 1) -> Plan:
    return replace(
        plan, stages=stages, schedule=schedule, microbatches=microbatches, virtual=virtual
    )
