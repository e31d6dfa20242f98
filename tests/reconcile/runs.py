"""Small real runs that leave a trace: `rooflight train` or `launch` in processes of their own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rooflight.measure.microbench.small_model import MODEL
from rooflight.models.spec import Block, Mlp, ModelSpec, Moe
from rooflight.plan.file.record import Plan, to_json
from rooflight.train.tokens import write_tokens

from ..train.small_run import small_plan, write_text

STEPS, PROFILE_AT = 24, 14
DEVICES = 8
ON = f"this-host:{DEVICES}"
# Layout, mesh, processes, experts.
RUNS = (
    ("dp=X", "X=8", 1, False),
    ("fsdp=X", "X=8", 1, False),
    ("tp=Y", "Y=8", 1, False),
    ("sp=Y", "Y=8", 1, False),
    ("dp=Z,tp=Y", "Z=4,Y=2", 1, False),
    ("fsdp=X,tp=Y", "X=2,Y=4", 1, False),
    ("fsdp=X,pp=P", "X=4,P=2", 1, False),
    ("fsdp=X", "X=8", 1, True),
    ("dp=Z,fsdp=X", "Z=2,X=4", 2, False),
    ("fsdp=X,sp=Y", "X=4,Y=2", 2, False),
)


def make_tokens(folder: Path) -> Path:
    write_tokens([write_text(folder / "text.txt")], folder / "tokens", vocab=300)
    return folder / "tokens"


def make_chip(folder: Path) -> Path:
    """This host, measured as a chip."""
    path = folder / "this-host.toml"
    command = ["measure", "--devices", str(DEVICES), "--write", str(path)]
    rooflight(command, chips=None)
    return path


def run_of(layout: str, mesh: str, *, experts: bool) -> Plan:
    changes: dict[str, object] = {"model": _experts() if experts else MODEL, "seq": 64}
    changes |= {"dtype": "f32"}
    if "pp" in layout:
        changes |= {"schedule": "1f1b", "stages": 2, "microbatches": 4}
    return small_plan(layout, mesh, ON, **changes)


def _experts() -> ModelSpec:
    block = MODEL.layers[0].blocks[0]
    routed = Block(block.attention, Moe(8, 2, Mlp(256)))
    return replace(MODEL, name="experts", layers=(replace(MODEL.layers[0], blocks=(routed,)),))


def train(folder: Path, tokens: Path, plan: Plan, processes: int, *, chips: Path) -> Path:
    """Trains to the end; gives back the run's folder."""
    path, out = folder / "plan.json", folder / "run"
    path.write_text(to_json(plan), encoding="utf-8")
    verb = ["train"] if processes == 1 else ["launch", "--processes", str(processes)]
    verb += [] if processes == 1 else ["--leader", "127.0.0.1:0"]
    flags = ["--data", str(tokens), "--out", str(out), "--steps", str(STEPS)]
    flags += ["--save-every", "1000", "--profile-at", str(PROFILE_AT), "--cpu"]
    rooflight([verb[0], str(path), *verb[1:], *flags], chips=chips)
    return out


def rooflight(words: list[str], *, chips: Path | None) -> str:
    """What the command prints."""
    env = dict(os.environ) | ({"ROOFLIGHT_CHIPS": str(chips)} if chips else {})
    done = subprocess.run(
        [sys.executable, "-m", "rooflight", *words],
        capture_output=True,
        text=True,
        timeout=1800,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
