"""Runs the shell steps of a job of a workflow here, in order, as GitHub's runner does.

`python tests/workflow_steps.py release build --at CLONE --env GITHUB_REF_NAME=v0.1.0`. Steps
that use an action are named and left out. A step that fails ends the job, but steps with
`if: always()` still run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # YAML

import yaml

WORKFLOWS = Path(__file__).parents[1] / ".github" / "workflows"
_ALWAYS = "always()"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job: a script, or an action if the script is empty."""

    name: str
    script: str
    condition: str
    environment: Mapping[str, str]


def load_workflow(path: Path) -> dict[str, Any]:
    """A workflow as data. YAML 1.1 reads the key `on` as true; it is put back."""
    document: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in document.items()}


def job_steps(workflow: Mapping[str, Any], *, job: str) -> list[Step]:
    """The steps of a job, with the variables that workflow, job and step set."""
    found = workflow["jobs"][job]
    outer = {**workflow.get("env", {}), **found.get("env", {})}
    return [
        Step(
            name=step.get("name") or step.get("uses") or step["run"].partition("\n")[0],
            script=step.get("run", ""),
            condition=step.get("if", ""),
            environment={**outer, **step.get("env", {})},
        )
        for step in found["steps"]
    ]


def run_job(steps: list[Step], *, at: Path, environment: Mapping[str, str]) -> int:
    """Runs the scripts in the folder `at`; the exit code of the first that fails."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        temp = Path(folder)
        added = temp / "path"
        added.touch()
        given = {**os.environ, **environment, "RUNNER_TEMP": folder, "GITHUB_PATH": str(added)}
        given.pop("PYTHONPATH", None)
        for step in steps:
            if not step.script:
                print(f"-- left out: {step.name}", flush=True)
            elif failed and step.condition != _ALWAYS:
                print(f"-- not reached: {step.name}", flush=True)
            else:
                print(f"== {step.name}", flush=True)
                path = os.pathsep.join([*_added(added), str(given["PATH"])])
                code = _run(step, at=at, environment={**given, "PATH": path})
                failed = failed or code
    return failed


def _added(file: Path) -> Iterator[str]:
    """Folders that earlier steps put on the path, the last one first."""
    return reversed(file.read_text().splitlines())


def _run(step: Step, *, at: Path, environment: Mapping[str, str]) -> int:
    script = Path(environment["RUNNER_TEMP"]) / "step.sh"
    script.write_text(step.script)
    command = ["bash", "-e", str(script)]  # how GitHub runs a step without `shell`
    return subprocess.run(command, cwd=at, env={**environment, **step.environment}).returncode


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workflow", choices=sorted(path.stem for path in WORKFLOWS.glob("*.yml")))
    parser.add_argument("job")
    parser.add_argument("--at", type=Path, required=True, help="a clean clone of the repository")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(words)
    workflow = load_workflow(args.at / ".github" / "workflows" / f"{args.workflow}.yml")
    environment = dict(word.split("=", 1) for word in args.env)
    return run_job(job_steps(workflow, job=args.job), at=args.at, environment=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
