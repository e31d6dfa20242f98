"""Layouts of whole models, to compile at both stages: what the page on verification lists.

`python tests/verify/whole_models.py` compiles them (half a minute each) and prints the table of
rewrites of docs/compiled-time.md.
"""

from dataclasses import dataclass, replace

from plans import EXAMPLE
from rewrites import FORMS, REWRITES, Rewriting, explain_rewrites

from rooflight.compile.aot.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.compile.aot.target import make_target
from rooflight.compile.findings.subject import BUILD
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan, to_json
from rooflight.ui.text.table import table


@dataclass(frozen=True, slots=True)
class Whole:
    """A model on a slice; `batch` counts sequences."""

    model: str
    slice: str
    layout: str
    mesh: str
    remat: str
    batch: int
    seq: int = 4096
    microbatches: int = 1

    @property
    def plan(self) -> Plan:
        return replace(
            EXAMPLE,
            model=load_model(self.model),
            recipe="f32",
            **{k: getattr(self, k) for k in ("slice", "layout", "mesh", "remat", "batch", "seq")},
            microbatches=self.microbatches,
        )


WHOLE = (
    Whole("llama3-8b", "v5e:4x4", "fsdp=X,sp=Y", "X=4,Y=4", "block", 16),
    Whole("llama3-8b", "v5p:4x4x4", "dp=Z", "Z=64", "none", 256, microbatches=2),
    Whole("llama3-70b", "v5p:4x4x4", "fsdp=X,sp=Y", "X=16,Y=4", "block", 128, microbatches=2),
    Whole("llama3-70b", "2*v5p:4x4x4", "dp=Z,fsdp=X,sp=Y", "Z=2,X=16,Y=4", "block", 128),
    Whole("llama3-70b", "v5p:16x20x28", "dp=Z,fsdp=X,sp=Y", "Z=35,X=64,Y=4", "block", 2240),
    Whole("llama3-70b", "v6e:16x16", "fsdp=X,cp=Y", "X=64,Y=4", "dots", 64, 8192),
    Whole("llama3.1-405b", "v5p:16x16x16", "fsdp=X,sp=Y", "X=512,Y=8", "block", 512, 8192),
    Whole("gemma2-9b", "v5e:8x8", "fsdp=X,sp=Y", "X=16,Y=4", "block", 64),
    Whole("mixtral-8x7b", "v5p:4x4x4", "dp=Z,fsdp=X,ep=X", "Z=8,X=8", "dots", 256),
    Whole("qwen3-30b-a3b", "v5p:4x4x4", "dp=Z,fsdp=X,ep=X", "Z=4,X=16", "block", 256),
    Whole("deepseek-v3", "v5p:8x8x16", "dp=Z,fsdp=X,ep=X", "Z=16,X=64", "block", 1024),
)


def rewriting(whole: Whole) -> Rewriting:
    """Compiles to both stages, the second at the compiler's own flags, and explains it."""
    plan = whole.plan
    mesh, arguments = plan.placed(), {"plan": to_json(plan)}
    requests = [
        CompileRequest(BUILD, mesh, arguments, "partitioned", PLAIN_COLLECTIVES),
        # Whether it fits is not the question here.
        CompileRequest(BUILD, mesh, arguments, options={"xla_tpu_no_crash_on_oom": True}),
    ]
    done = compile_all(requests, jobs=1)
    assert all(one.is_good for one in done), [one.words for one in done]
    before = read_compilation(done[0], stage="partitioned")
    after = read_compilation(done[1], stage="scheduled")
    return explain_rewrites(before, after, MeshAxes(mesh.axes, make_target(mesh).dcn))


def rewrites_table() -> str:
    """How many runs of each layout the compiler made what of."""
    rows: list[list[str]] = []
    for whole in WHOLE:
        found = rewriting(whole)
        cells = [f"{found.counts.get(name, 0):,}" for name in (*FORMS, *REWRITES)]
        rows.append([f"{whole.model} on {whole.slice}", *cells, f"{found.unexplained:,}"])
    return table(["runs a step of", *FORMS, *REWRITES, "unexplained"], rows)


if __name__ == "__main__":
    print(rewrites_table())
