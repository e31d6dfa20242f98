"""Programs of packages on PyPI: MaxText's step, tunix's trainer, tokamax's kernels. Nothing false.

One finding is true, and shown with the change that removes it: `PeftTrainer` donates the state of
the optimizer and not the weights, which are then held twice while a step runs.
"""

import importlib.util
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

import rooflight as rf
from benchmarks.program import maxtext_python, newer_python
from rooflight.compile.aot.program import ProgramVerdict

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)

HERE = Path(__file__).parent
PROGRAMS = HERE / "public_programs.py"
SOUND = (
    *("tunix_llama", "tunix_qwen3", "tunix_experts", "tunix_gemma3"),
    *("tokamax_attention", "tokamax_experts", "tokamax_loss"),
)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages, and the jax and libtpu of this one."""
    here = tmp_path_factory.mktemp("public") / "environment"
    subprocess.run([newer_python(), "-m", "venv", str(here)], check=True)
    same = [f"{name}=={version(name)}" for name in ("jax", "jaxlib", "libtpu")]
    pip = [str(here / "bin" / "pip"), "install", "--quiet", "--no-deps"]
    listed = str(HERE / "public_packages.txt")
    if subprocess.run([*pip, "-r", listed, *same], capture_output=True).returncode:
        pytest.skip("the packages do not install here")
    return here


def _verdict(name: str, public: Path) -> ProgramVerdict:
    return rf.verify_function(
        f"{PROGRAMS}:{name}",
        on="v5e:2x4",
        mesh="fsdp=2,tp=4",
        until="partitioned",
        compiler=str(public),
    )


@pytest.mark.full
def test_public_code_raises_no_false_finding(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    for name in SOUND:
        verdict = _verdict(name, public)
        assert verdict.partitioned, verdict.done[0].words
        assert verdict.findings == (), [str(f) for f in verdict.findings]


@pytest.mark.full
def test_the_step_of_maxtext_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own flags keep dumps to modules of a name; its mesh has twelve axes, most of one."""
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    python = Path(maxtext_python(tmp_path))
    verdict = _verdict("maxtext_llama", python.parents[1])
    assert verdict.partitioned, verdict.done[0].words
    assert verdict.findings == (), [str(f) for f in verdict.findings]
    gathers = [c for c in verdict.partitioned.collectives if c.kind == "all_gather"]
    assert any(c.source for c in gathers)


@pytest.mark.full
def test_a_true_finding_on_public_code_goes_with_the_change_it_names(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "cache"))
    (found,) = _verdict("tunix_llama_as_it_is", public).findings
    assert found.kind == "not_donated" and found.fix.startswith("jax.jit(..., donate_argnames='mo")
    weights = sum(
        a.device_bytes for a in _verdict("tunix_llama", public).arguments if a.root == "model"
    )
    assert found.nbytes == weights
