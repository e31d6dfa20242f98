"""The compiler of GPUs, with no GPU: plans and functions for H100s and their like.

The CUDA plugin is half a gigabyte that jax would try to start wherever it is installed, so it lies
in an environment of its own, which sees this one's packages: what `verify --compiler` is for.
"""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from plans import small_plan

import rooflight as rf
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.aot.target import gpu_names
from rooflight.compile.findings.document import known_of
from rooflight.compile.findings.verify import Verdict
from rooflight.hardware.catalog import load_chip
from rooflight.ui.answers.verdict import verdict_answer
from rooflight.ui.text.answer import answer_text

_FUNCTIONS = '''
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def _like(mesh, shape, *axes, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))


def _mlp(mesh, hidden):
    def loss(params, x):
        for w_in, w_out in params:
            y = jax.nn.silu(x @ w_in)
            y = jax.lax.with_sharding_constraint(y, NamedSharding(mesh, hidden))
            x = x + y @ w_out
            x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("X")))
        return jnp.sum(x.astype(jnp.float32))

    layer = _like(mesh, (2048, 8192), None, "Y"), _like(mesh, (8192, 2048), "Y")
    x = _like(mesh, (8192, 2048), "X")
    return jax.jit(loss), ([layer] * 4, x)


def tensor_parallel(mesh):
    return _mlp(mesh, P("X", "Y"))


def lost_axis(mesh):
    """The constraint of the hidden activations has lost its Y."""
    return _mlp(mesh, P("X", None))


def ring(mesh):
    def step(w, x):
        def one(w, x):
            size = jax.lax.axis_size("X")
            pairs = [(i, (i + 1) % size) for i in range(size)]
            total = jnp.zeros((x.shape[0], w.shape[1]), jnp.float32)
            for _ in range(size):
                total += jnp.dot(x, w, preferred_element_type=jnp.float32)
                w = jax.lax.ppermute(w, "X", pairs)
            return total.astype(x.dtype)

        return jax.shard_map(one, mesh=mesh, in_specs=(P("X"), P("X")), out_specs=P("X"))(w, x)

    tall = _like(mesh, (8192, 8192 // mesh.shape["X"]), "X")
    return jax.jit(step), (tall, tall)


def decode(mesh):
    def step(cache, q, k, at):
        cache = jax.lax.dynamic_update_slice(cache, k[:, None], (0, at, 0, 0))
        scores = jnp.einsum("bnh,bsnh->bns", q, cache, preferred_element_type=jnp.float32)
        return cache, jnp.einsum("bns,bsnh->bnh", jax.nn.softmax(scores).astype(q.dtype), cache)

    cache = _like(mesh, (64, 4096, 8, 128), "X", None, "Y")
    token = _like(mesh, (64, 8, 128), "X", "Y")
    return jax.jit(step, donate_argnums=0), (cache, token, token, _like(mesh, (), dtype=jnp.int32))


def remat(mesh):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(ws, x):
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, ws)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    ws, x = _like(mesh, (8, 2048, 2048), None, "Y"), _like(mesh, (8192, 2048), "X")
    same = jax.tree.map(lambda a: a.sharding, (ws, x))
    return jax.jit(jax.value_and_grad(loss), out_shardings=(None, same[0])), (ws, x)


def fused_attention(mesh):
    def attend(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")

    rows = P("X", None, "Y")
    own = jax.shard_map(attend, mesh=mesh, in_specs=(rows,) * 3, out_specs=rows, check_vma=False)
    loss = lambda q, k, v: jnp.sum(own(q, k, v).astype(jnp.float32))
    like = _like(mesh, (8, 4096, 16, 128), *rows)
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))), (like,) * 3


def too_large(mesh):
    w, x = _like(mesh, (131072, 524288)), _like(mesh, (1024, 131072), "X")
    return jax.jit(lambda w, x: jnp.tanh(x @ w)), (w, x)
'''
SOUND = ("tensor_parallel", "ring", "decode", "remat", "fused_attention")


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this one's packages and the CUDA plugin of its jax."""
    try:
        pin = version("jax")
    except PackageNotFoundError:
        pytest.skip("jax is not installed")
    here = tmp_path_factory.mktemp("gpu") / "cuda"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(here)], check=True)
    (own,) = here.glob("lib/python*/site-packages")
    packages = [p for p in sys.path if p.endswith("-packages")]
    (own / "here.pth").write_text("\n".join(packages))
    plugin = [f"jax-cuda12-plugin=={pin}", f"jax-cuda12-pjrt=={pin}"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(own)]
    if subprocess.run([*pip, *plugin], capture_output=True).returncode:
        pytest.skip(f"no wheel of {plugin[0]} for this machine")
    return here


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "functions.py").write_text(_FUNCTIONS)
    return tmp_path / "functions.py"


def function_verdict(where: Path, name: str, on: str, mesh: str, cuda: Path) -> ProgramVerdict:
    return rf.verify_function(f"{where}:{name}", on=on, mesh=mesh, compiler=str(cuda))


def test_a_plan_for_h100s_compiles_to_its_collectives(cuda: Path, functions: Path) -> None:
    plan = replace(small_plan("fsdp=X,tp=Y", "X=4,Y=2"), slice="h100:8")
    verdict = rf.verify(plan, until="scheduled", compiler=str(cuda))
    holds(verdict)
    time = verdict.time
    assert time and time.error and verdict.scheduled
    assert time.ops["roofline"] == sum(time.ops.values()) > 20 and not time.unknown
    assert 0.05 < time.error < 0.4  # what published kernels were off by, weighted by time
    peak = verdict.mesh.slice.chip.peak_flops("bf16")
    assert time.busy_s["matrix"] > verdict.scheduled.known_flops / peak
    assert "give or take" in answer_text(verdict_answer(known_of(verdict)))
    versions = verdict.done[0].versions
    assert versions["jax-cuda12-plugin"] == versions["jax"] == version("jax")


def holds(verdict: Verdict) -> None:
    """It went through, to the derived collectives, with the remat of the plan."""
    assert [done.outcome for done in verdict.done] == ["compiled"] * 2
    assert verdict.findings == ()
    assert verdict.collectives and verdict.matching and verdict.matching.matched_share > 0.99
    assert verdict.memory and verdict.memory.by_category["temporaries"] > 0


def test_what_a_gpu_cannot_hold_is_said_though_its_compiler_does_not(
    cuda: Path, functions: Path
) -> None:
    (finding, *_) = function_verdict(functions, "too_large", "h100:8", "X=8", cuda).findings
    assert finding.kind == "out_of_memory" and "a device has 80 GB" in finding.words
    line = next(i for i, text in enumerate(_FUNCTIONS.splitlines(), 1) if "lambda w, x" in text)
    assert finding.where == f"{functions}:{line}"
    kinds = [
        f.kind for f in function_verdict(functions, "too_large", "b200:8", "X=8", cuda).findings
    ]
    assert "out_of_memory" not in kinds


def test_attention_of_cudnn_is_traced_without_it_and_has_a_time(
    cuda: Path, functions: Path
) -> None:
    verdict = function_verdict(functions, "fused_attention", "h100:8", "X=4,Y=2", cuda)
    assert verdict.findings == () and verdict.time and not verdict.time.unknown
    flops = 7 * 8 / 4 * 16 / 2 * 4096**2 * 128  # seven matmuls, half of each masked
    least = flops / verdict.mesh.slice.chip.peak_flops("bf16")
    assert least < verdict.time.busy_s["kernels"] < 4 * least


def test_every_gpu_that_is_described_has_the_memory_of_its_chip() -> None:
    for name in gpu_names():
        folder = Path(rf.__file__ or "").parent / "compile/aot/gpu_targets"
        text = (folder / f"{name}.txtpb").read_text()
        said = int(text.partition("device_memory_size: ")[2].split()[0])
        assert said == pytest.approx(load_chip(name).hbm_bytes, rel=0.08)


FLAT = [
    ("h100:8x8", "llama3.2-1b", "512Ki", 4096),
    ("h100:8x8", "llama3-8b", "4Mi", 8192),
    ("h100:8x8", "qwen3-30b-a3b", "1Mi", 4096),
    ("h100:8x8", "gemma3-27b", "1Mi", 8192),
    ("b200:8", "llama3.2-1b", "256Ki", 4096),
    ("b200:8", "llama3-8b", "1Mi", 8192),
    ("b200:8", "qwen3-30b-a3b", "256Ki", 4096),
    ("b200:8", "qwen3-32b", "256Ki", 8192),
]
STAGED = [("h100:8x8", "llama3-70b", "1Mi", 8192), ("h100:8x8", "mixtral-8x7b", "1Mi", 4096)]


@pytest.mark.full
@pytest.mark.parametrize(("on", "model", "batch", "seq"), (*FLAT, *STAGED))
def test_plans_of_whole_models_compile_for_gpus(
    on: str, model: str, batch: str, seq: int, cuda: Path, functions: Path
) -> None:
    plan = rf.plan_training(model, on=on, batch=batch, seq=seq)
    verdict = rf.verify(plan, until="scheduled", compiler=str(cuda))
    holds(verdict)
    assert verdict.memory
    assert 0.5 < verdict.memory.total_bytes / plan.memory.total_bytes < 1.25


@pytest.mark.full
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize(("on", "mesh"), [("h100:8x8", "X=8,Y=8"), ("b200:8", "X=4,Y=2")])
def test_functions_compile_for_gpus(
    name: str, on: str, mesh: str, cuda: Path, functions: Path
) -> None:
    verdict = function_verdict(functions, name, on, mesh, cuda)
    assert [f for f in verdict.findings if f.kind != "waits"] == []


@pytest.mark.full
def test_a_mistake_is_found_for_gpus_too(cuda: Path, functions: Path) -> None:
    verdict = function_verdict(functions, "lost_axis", "h100:8", "X=4,Y=2", cuda)
    (found,) = (f for f in verdict.findings if f.kind != "waits")
    assert found.kind == "cut_again" and "over Y and cut over Y again" in found.words
    lines = _FUNCTIONS.splitlines()
    line = next(at for at, text in enumerate(lines, 1) if "NamedSharding(mesh, hidden)" in text)
    assert found.where == f"{functions}:{line}"
