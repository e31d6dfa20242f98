"""What contributors meet: workflows, hooks, the lock, forms, and a root with nothing stray."""

import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # YAML

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rooflight

from .workflow_steps import Step, job_steps, load_workflow, run_job

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in (GITHUB / "workflows").glob("*.yml")}
REQUIREMENTS = ROOT / "requirements"
TOP = {
    *(".ci", ".github", "benchmarks", "docs", "labs", "requirements", "src", "tests"),
    *(".gitignore", ".pre-commit-config.yaml", "pyproject.toml", "check", "LICENSE"),
    *("ARCHITECTURE.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md"),
    *("README.md", "SECURITY.md"),
}
SCHEMAS = {
    "github-workflows": sorted(WORKFLOWS.values()),
    "github-issue-forms": sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml")),
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
# What a job may do beyond reading the repository.
GRANTED = {
    ("docs", "publish"): {"pages": "write", "id-token": "write"},
    ("release", "publish"): {"id-token": "write"},
}
_PIN = re.compile(
    r"^([a-z0-9._-]+)==(\S+?)(?: ;(.*?))? \\\n((?:    --hash=sha256:\w{64}(?: \\)?\n)+)", re.M
)


def validate(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    command = ["check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(lines: list[str]) -> dict[str, str]:
    """Exact versions by name."""
    return dict(line.split("==") for line in lines if "==" in line)


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, path in WORKFLOWS.items():
        for job, content in load_workflow(path)["jobs"].items():
            yield name, job, content


def steps(job: dict[str, Any], key: str) -> list[str]:
    return [step[key] for step in job["steps"] if key in step]


def test_the_root_holds_what_is_listed_here_and_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    assert {name.partition("/")[0] for name in names} == TOP


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_github_and_for_citation_follow_their_published_schema(schema: str) -> None:
    assert SCHEMAS[schema]
    done = validate(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout


def test_a_workflow_with_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS["check"].read_text().replace("runs-on:", "run-on:", 1))
    assert validate("github-workflows", wrong).returncode == 1


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_reads_the_repository_and_no_secrets(name: str) -> None:
    workflow = load_workflow(WORKFLOWS[name])
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    assert "pull_request_target" not in workflow["on"]
    assert "secrets." not in WORKFLOWS[name].read_text()


def test_a_job_is_granted_what_it_needs_and_ends_in_time() -> None:
    granted = {(name, job): content.get("permissions") for name, job, content in jobs()}
    assert {job: more for job, more in granted.items() if more} == GRANTED
    assert {(name, job) for name, job, c in jobs() if not 0 < c["timeout-minutes"] <= 350} == set()


def test_actions_are_pinned_to_a_major_version_and_leave_no_token() -> None:
    for _, _, job in jobs():
        for action in steps(job, "uses"):
            assert re.fullmatch(r"actions/[\w-]+@v\d+|pypa/[\w-]+@release/v\d+", action)
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_scripts_of_workflows_have_no_expressions() -> None:
    """So they run anywhere, and no name of a branch becomes code."""
    scripts = [script for _, _, job in jobs() for script in steps(job, "run")]
    assert len(scripts) > 10
    assert [script for script in scripts if "${{" in script] == []


def test_workflows_call_the_check_on_the_lock() -> None:
    called = {(name, job): steps(content, "run") for name, job, content in jobs()}
    assert called["check", "check"][-2:] == ["requirements/install", "./check"]
    assert called["check", "versions"][-1] == "./check --quick"
    assert called["check", "newest"][-1] == "./check"
    assert "requirements/install" not in called["check", "newest"]
    assert {"requirements/install", "./check --full"} < set(called["nightly", "full"])
    assert "python -m sphinx -W docs build" in called["docs", "build"]


def test_python_versions_of_workflows_are_those_of_the_package() -> None:
    found: set[str] = set()
    for _, _, job in jobs():
        found |= {
            str(step["with"]["python-version"])
            for step in job["steps"]
            if "setup-python" in str(step.get("uses"))
        } - {"${{ matrix.python }}"}
        found |= set(job.get("strategy", {}).get("matrix", {}).get("python", []))
    said = re.findall(r":: Python :: (3\.\d+)", "\n".join(project()["classifiers"]))
    assert found == set(said)


def test_a_job_is_run_as_its_steps_say(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "greet").write_text("#!/bin/sh\necho $WORD\n")
    (tmp_path / "bin" / "greet").chmod(0o755)
    workflow = {
        "env": {"WORD": "outer"},
        "jobs": {
            "one": {
                "env": {"WORD": "inner"},
                "steps": [
                    {"uses": "actions/checkout@v7"},
                    {"run": 'echo "$PWD/bin" >> "$GITHUB_PATH"'},
                    {"run": "greet"},
                    {"run": "false\necho after"},
                    {"run": "echo unreached"},
                    {"run": "echo tidy", "if": "always()", "name": "tidy up"},
                ],
            }
        },
    }
    code = run_job(job_steps(workflow, job="one"), at=tmp_path, environment={})
    lines = capfd.readouterr().out.splitlines()
    assert code == 1
    assert "inner" in lines and "tidy" in lines
    assert "after" not in lines and "unreached" not in lines
    assert "-- left out: actions/checkout@v7" in lines


def test_hooks_have_the_pins_of_the_dev_extra() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    used = [line for hook in hooks for line in hook["additional_dependencies"]]
    dev = pins(project()["optional-dependencies"]["dev"])
    for tool in ("ruff", "codespell"):
        assert {line for line in used if line.startswith(tool)} == {f"{tool}=={dev[tool]}"}
    assert len({line for line in used if line.startswith("pre-commit-hooks==")}) == 1


@pytest.mark.parametrize("name", ["ci", "release", "uv"])
def test_every_line_of_a_lock_is_a_version_with_hashes(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert text.startswith("# This file was autogenerated by uv") and "requirements/lock" in text
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    rest = re.sub(r"^ *#.*\n", "", _PIN.sub("", text), flags=re.M)
    assert rest == ""


def test_the_lock_has_what_the_extras_of_ci_ask_for() -> None:
    """A requirement that the lock does not satisfy: run `requirements/lock`."""
    locked = {m[1]: m[2] for m in _PIN.finditer((REQUIREMENTS / "ci.txt").read_text())}
    extras = (REQUIREMENTS / "extras.txt").read_text().strip().split(",")
    described = project()
    lines = [*described["dependencies"]]
    lines += [line for extra in extras for line in described["optional-dependencies"][extra]]
    for line in lines:
        needed = Requirement(line)
        version = locked.get(canonicalize_name(needed.name))
        assert version and needed.specifier.contains(version), f"{line}: the lock has {version}"


def test_the_locks_agree() -> None:
    texts = [(REQUIREMENTS / f"{name}.txt").read_text() for name in ("ci", "release")]
    ci, release = ({(m[1], m[2]) for m in _PIN.finditer(text)} for text in texts)
    assert release < ci


def test_the_lock_drags_in_no_cuda() -> None:
    names = [match[1] for match in _PIN.finditer((REQUIREMENTS / "ci.txt").read_text())]
    assert len(names) > 100
    assert [name for name in names if name.startswith(("nvidia", "cuda", "triton"))] == []


def test_the_changelog_has_released_sections_and_one_to_come() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[0] == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", h) for h in heads[1:]]
    numbers = [tuple(map(int, match.groups()[:3])) for match in found if match]
    assert len(numbers) == len(heads) - 1 and numbers == sorted(numbers, reverse=True)
    assert rooflight.__version__ == ".".join(map(str, numbers[0]))


def test_the_citation_has_the_version_and_date_of_the_last_release() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    head = f"## [{cited['version']}] - {cited['date-released']}"
    assert cited["version"] == rooflight.__version__
    assert head in (ROOT / "CHANGELOG.md").read_text().splitlines()


def test_forms_ask_for_what_is_needed_to_act() -> None:
    asked: dict[str, str] = {}
    for path in SCHEMAS["github-issue-forms"]:
        form = yaml.safe_load(path.read_text())
        asked |= {
            f"{path.stem} {b['id']}": b["attributes"].get("description", "") for b in form["body"]
        }
    assert "rooflight doctor --json" in asked["bug doctor"]
    assert {"wrong-number command", "wrong-number expected", "wrong-number source"} < set(asked)
    assert "feature oracle" in asked


def clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def the_steps(workflow: str, job: str) -> list[Step]:
    return job_steps(load_workflow(WORKFLOWS[workflow]), job=job)


@pytest.mark.full
def test_the_release_is_built_and_tried_in_a_clean_clone(tmp_path: Path) -> None:
    here = clone(tmp_path / "clone")
    tag = {"GITHUB_REF_NAME": f"v{rooflight.__version__}"}
    assert run_job(the_steps("release", "build"), at=here, environment=tag) == 0
    assert {path.suffix for path in (here / "dist").iterdir()} == {".whl", ".gz"}
    wrong = {"GITHUB_REF_NAME": "v9.9.9"}
    until = [step for step in the_steps("release", "build") if step.name != "Build"]
    assert run_job(until, at=here, environment=wrong) != 0


@pytest.mark.full
def test_the_handbook_is_built_from_the_lock_in_a_clean_clone(tmp_path: Path) -> None:
    here = clone(tmp_path / "clone")
    assert run_job(the_steps("docs", "build"), at=here, environment={}) == 0
    assert (here / "build" / "release.html").exists()


@pytest.mark.full
def test_the_hooks_pass_on_every_file_and_refuse_a_wrong_one(tmp_path: Path) -> None:
    here = clone(tmp_path / "clone")
    venv.create(tmp_path / "env", with_pip=True)
    bin = tmp_path / "env" / "bin"
    subprocess.run([bin / "pip", "install", "--quiet", "pre-commit==4.7.0"], check=True)
    hooks = [bin / "pre-commit", "run", "--all-files"]
    done = subprocess.run(hooks, cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (here / "docs" / "wrong.md").write_text("teh end \n\n")  # codespell:ignore
    subprocess.run(["git", "add", "docs/wrong.md"], cwd=here, check=True)
    done = subprocess.run(hooks, cwd=here, capture_output=True, text=True)
    failed = re.findall(r"hook id: (\S+)", done.stdout)
    assert failed == ["codespell", "end-of-file", "trailing-whitespace"]
