"""`launch --write`: what an operator would submit, against the plan and published schemas."""

import ast
import asyncio
import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rooflight.cli.main import main
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.plan.file.record import from_json
from rooflight.train.supervisor import listen

from ..dated_figure import DOCS, write_figure
from .small_run import MODEL, small_plan, write_plan

FLAGS = ["--data", "it's tokens", "--out", "run", "--steps", "10"]
SCHEMA = Path(__file__).with_name("jobset_schema.json")
TPU = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"

# By hand: of a slice its Jobs, pods of each, chips of a pod, labels.
PLANS = {
    "v5e:2x2": (1, 1, 4, ("tpu-v5-lite-podslice", "2x2")),
    "v5e:16x16": (1, 64, 4, ("tpu-v5-lite-podslice", "16x16")),
    "2*v5e:4x4": (2, 4, 4, ("tpu-v5-lite-podslice", "4x4")),
    "v5p:2x2x1": (1, 1, 4, ("tpu-v5p-slice", "2x2x1")),
    "2*v5p:4x4x4": (2, 16, 4, ("tpu-v5p-slice", "4x4x4")),
    "8*v6e:8x4": (8, 8, 4, ("tpu-v6e-slice", "4x8")),
    "tpu7x:4x4x8": (1, 32, 4, ("tpu7x", "4x4x8")),
    "h100:8x16": (1, 16, 8, ("nvidia-h100-mega-80gb",)),
}


def _plan(folder: Path, on: str) -> Path:
    jobs, pods, chips, _ = PLANS[on]
    plan = small_plan("fsdp=X", f"X={jobs * pods * chips}", on, batch=jobs * pods * chips)
    return write_plan(folder / "plan.json", plan)


def _written(capsys: pytest.CaptureFixture[str], form: str, plan: Path, *flags: str) -> str:
    assert main(["launch", str(plan), *FLAGS, *flags, "--write", form]) == 0
    return capsys.readouterr().out


def _job(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["spec"]["replicatedJobs"]
    return found


@pytest.mark.parametrize("on", PLANS)
def test_a_jobset_has_a_job_per_slice_and_a_pod_per_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    jobs, pods, chips, labels = PLANS[on]
    plan = _plan(tmp_path, on)
    config, document = yaml.safe_load_all(_written(capsys, "jobset", plan))
    replicated = _job(document)
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert replicated["replicas"] == jobs
    assert (job["parallelism"], job["completions"]) == (pods, pods)
    resource = "google.com/tpu" if len(labels) > 1 else "nvidia.com/gpu"
    assert container["resources"] == {"requests": {resource: chips}, "limits": {resource: chips}}
    assert jobs * pods * chips == from_json(plan.read_text()).placed().slice.num_chips
    keys = TPU if len(labels) > 1 else ("cloud.google.com/gke-accelerator",)
    assert pod["nodeSelector"] == dict(zip(keys, labels, strict=True))
    exclusive = document["metadata"].get("annotations", {}).get(EXCLUSIVE)
    assert exclusive == ("cloud.google.com/gke-nodepool" if len(labels) > 1 else None)
    assert pod.get("hostNetwork", False) == (jobs > 1)
    _check_mounts(pod, config, plan)


def _check_mounts(pod: dict[str, Any], config: dict[str, Any], plan: Path) -> None:
    """The plan that a pod reads is the plan, and data and run are in the claim."""
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    command = container["command"]
    folder, _, name = command[command.index("launch") + 1].rpartition("/")
    assert mounts[folder]["configMap"]["name"] == config["metadata"]["name"]
    assert from_json(config["data"][name]) == from_json(plan.read_text())
    assert "persistentVolumeClaim" in mounts[container["workingDir"]]


@pytest.mark.parametrize("on", PLANS)
def test_manifests_are_what_the_published_schemas_ask_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the oracle extra").validate
    plan = _plan(tmp_path, on)
    config, document = yaml.safe_load_all(_written(capsys, "jobset", plan))
    validate(config, "1.31", strict=True)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    job: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", **_job(document)["template"]}
    validate(job, "1.31", strict=True)
    job["spec"]["template"]["spec"]["containers"][0]["resource"] = {}  # and a typo is found
    with pytest.raises(jsonschema.ValidationError):
        validate(job, "1.31", strict=True)


def test_pods_number_themselves_from_the_first_of_the_first_slice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the very words of the container, in a shell, with `rooflight` replaced by `printf`."""
    plan = _plan(tmp_path, "2*v5e:4x4")
    _, document = yaml.safe_load_all(_written(capsys, "jobset", plan))
    command = _job(document)["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    at = command.index("rooflight")
    found, leader = list[str](), ""
    for index in range(8):
        env = {**os.environ, "SLICE": str(index // 4), "JOB_COMPLETION_INDEX": str(index % 4)}
        shown = [*command[:at], "printf", "%s\n", *command[at:]]
        done = subprocess.run(shown, env=env, capture_output=True, text=True, check=True)
        words = done.stdout.splitlines()
        assert words[words.index("--data") + 1] == "it's tokens"
        assert words[words.index("--hosts") + 1] == "8"
        leader = words[words.index("--leader") + 1]
        found.append(words[words.index("--host") + 1])
    name = document["metadata"]["name"]
    assert found == [str(n) for n in range(8)]
    assert leader == f"{name}-slice-0-0.{document['spec']['network']['subdomain']}:8476"


def test_a_set_begins_again_without_end_when_it_was_told_to_stop_and_a_few_times_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _plan(tmp_path, "v5e:16x16")
    _, document = yaml.safe_load_all(_written(capsys, "jobset", plan))
    policy, job = document["spec"]["failurePolicy"], _job(document)["template"]["spec"]
    (rule,) = policy["rules"]
    assert 0 < policy["maxRestarts"] < 100
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    told, disrupted = job["podFailurePolicy"]["rules"]
    assert (told["action"], told["onExitCodes"]["values"]) == ("FailJob", [75])
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert job["backoffLimit"] == 0  # one pod that fails is the failure of all
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 300


@pytest.mark.parametrize("on", PLANS)
def test_a_slurm_script_asks_for_the_nodes_and_gpus_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    jobs, pods, chips, _ = PLANS[on]
    script = _written(capsys, "slurm", _plan(tmp_path, on))
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH --")]
    parts = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    asked = {name: value for name, _, value in parts}
    each = load_chip(on.partition(":")[0].rpartition("*")[2]).host_chips
    nodes = max(jobs, jobs * pods * chips // each)
    assert (asked["nodes"], asked["ntasks-per-node"]) == (str(nodes), "1")
    assert asked.get("gpus-per-node") == ("8" if on.startswith("h100") else None)
    assert asked["requeue"] == asked["exclusive"] == "" and asked["mem"] == "0"
    assert asked["signal"] == "TERM@300" and asked["open-mode"] == "append"


def test_a_part_of_a_node_is_shared_and_a_cpu_asks_for_no_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=8", "h100:4x2"))
    script = _written(capsys, "slurm", plan)
    assert "--nodes=2\n" in script and "--gpus-per-node=4\n" in script
    assert "--exclusive" not in script and "--mem" not in script
    on_cpu = _written(capsys, "slurm", plan, "--cpu")
    assert "gpus" not in on_cpu and "--exclusive" in on_cpu
    _, document = yaml.safe_load_all(_written(capsys, "jobset", plan, "--cpu"))
    pod = _job(document)["template"]["spec"]["template"]["spec"]
    assert "resources" not in pod["containers"][0] and "nodeSelector" not in pod


def test_hosts_that_cannot_hold_the_slice_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for on, hosts in (("2*v5p:4x4x4", "31"), ("2*v5p:4x4x4", "1"), ("h100:8x16", "8")):
        words = ["launch", str(_plan(tmp_path, on)), *FLAGS, "--hosts", hosts]
        assert main([*words, "--write", "jobset"]) == 2
        assert "leave --hosts out" in capsys.readouterr().err
    one = _written(capsys, "jobset", _plan_of(tmp_path, "v5e:2x4", 8), "--hosts", "1")
    (_, document) = yaml.safe_load_all(one)  # ct5lp-hightpu-8t
    pod = _job(document)["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 8}


def _plan_of(folder: Path, on: str, chips: int) -> Path:
    return write_plan(folder / "plan.json", small_plan("fsdp=X", f"X={chips}", on))


def test_the_claim_is_mounted_where_data_and_run_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(_plan(tmp_path, "v5e:2x2"))
    words = ["launch", plan, "--steps", "10", "--write", "jobset"]
    assert main([*words, "--data", "/mnt/nfs/a/tokens", "--out", "/mnt/nfs/run"]) == 0
    _, document = yaml.safe_load_all(capsys.readouterr().out)
    pod = _job(document)["template"]["spec"]["template"]["spec"]
    (run,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "run")
    assert run["mountPath"] == pod["containers"][0]["workingDir"] == "/mnt/nfs"
    for data, out in (("/tokens", "/run"), ("/mnt/tokens", "run")):
        assert main([*words, "--data", data, "--out", out]) == 2
        assert "not in one folder" in capsys.readouterr().err


def test_a_run_in_python_is_in_the_claim_with_the_files_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _plan(tmp_path, "v5e:2x2")
    assert main(["train"]) == 0
    (tmp_path / "run.py").write_text(capsys.readouterr().out)
    words = ["launch", "run.py", "--write", "jobset", "--image", "a/b:1", "--claim", "nfs"]
    assert main(words) == 0
    (document,) = yaml.safe_load_all(capsys.readouterr().out)
    pod = _job(document)["template"]["spec"]["template"]["spec"]
    assert [v["name"] for v in pod["volumes"]] == ["run"] and "run.py" in pod["containers"][0][
        "command"
    ]
    assert pod["containers"][0]["image"] == "a/b:1"
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "nfs"


def test_every_accelerator_of_the_catalog_says_what_a_pod_asks_for() -> None:
    for chip in map(load_chip, chip_names()):
        assert (chip.kubernetes is None) == (chip.kind == "cpu"), chip.name
        if chip.kubernetes and chip.kubernetes.chips_per_node:
            assert chip.host_chips % chip.kubernetes.chips_per_node == 0


def test_a_leader_waits_for_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a cluster publishes a moment after it has started the host."""
    asked, said = list[str](), list[str]()
    known = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known("127.0.0.1", *args, **kwargs)

    async def accept(*_: object) -> None:
        raise AssertionError("nobody calls")

    async def scene() -> str:
        async with await listen(accept, "run-slice-0-0.run", 0, said.append) as server:
            return str(server.sockets[0].getsockname()[0])

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert asyncio.run(scene()) == "127.0.0.1"
    assert said == ["waits for the name run-slice-0-0.run: Name or service not known"]


def test_a_slurm_script_starts_every_host_and_goes_back_to_the_queue_when_told_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins of Slurm's commands; `test_slurm.py` has the real ones."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "job.sh"
    script.write_text(_written(capsys, "slurm", _plan(tmp_path, "v5e:16x16"), "--hosts", "64"))
    for code in (0, 1, 75):
        words, called = _run_slurm(script, tmp_path / str(code), code)
        assert words[-6:] == ["--hosts", "64", "--host", "3", "--leader", "node-a:8476"]
        assert words[words.index("--data") + 1] == "it's tokens"
        assert called == (["show hostnames x", "requeue 7"] if code == 75 else ["show hostnames x"])


def _run_slurm(script: Path, tools: Path, code: int) -> tuple[list[str], list[str]]:
    """The words that a task would be started with, and what `scontrol` was told."""
    tools.mkdir()
    for name, body in {
        "scontrol": f"echo \"$@\" >> {tools}/called; printf 'node-a\\nnode-b\\n'",
        "srun": 'while [[ $1 == --* ]]; do shift; done; SLURM_PROCID=3 exec "$@"',
        "rooflight": f'printf "%s\\n" "$@" > {tools}/words; exit {code}',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    env |= {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash", str(script)], env=env).returncode == code
    found = [(tools / name).read_text().splitlines() for name in ("words", "called")]
    return found[0], found[1]


@pytest.mark.parametrize("on", PLANS)
def test_a_program_of_ray_asks_for_the_nodes_and_chips_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    """`test_ray.py` runs one."""
    jobs, pods, chips, labels = PLANS[on]
    tree = ast.parse(_written(capsys, "ray", _plan(tmp_path, on)))
    said = {ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)}
    names = ast.literal_eval(said["(HOSTS, PORT, TOLD_TO_STOP, MOST_LOST)"])
    assert names[:3] == (jobs * pods, 8476, 75)
    assert ast.literal_eval(said["NODE"]) == {"TPU" if len(labels) > 1 else "GPU": chips}
    command = ast.literal_eval(said["COMMAND"])
    assert command[:2] == ["rooflight", "launch"] and command[-1] == str(jobs * pods)
    assert ast.literal_eval(said["FOLDER"]) == str(Path.cwd())


def test_the_script_of_the_docs_is_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ROOFLIGHT_UPDATE_GOLDEN=1` writes it."""
    monkeypatch.chdir(tmp_path)
    plan = _plan(tmp_path, "h100:8x16")
    named = replace(from_json(plan.read_text()), model=replace(MODEL, name="llama3-70b"))
    write_plan(Path("plan.json"), named)
    words = ["--data", "tokens", "--out", "run", "--steps", "1000", "--write", "slurm"]
    assert main(["launch", "plan.json", *words]) == 0
    script = capsys.readouterr().out.replace(str(tmp_path), "/home/me")
    write_figure("clusters.md", "script", f"```bash\n{script}```")
    assert script in (DOCS / "clusters.md").read_text()
