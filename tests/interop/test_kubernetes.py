"""Manifests of fleets: what an operator would apply, against tables by hand and schemas."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rooflight.hardware.slice import parse_slice
from rooflight.interop.kubernetes import export_manifest
from rooflight.interop.serving import SERVERS, ServedFleet, Server, servers

from .test_serving_export import FLEET

SCHEMAS = json.loads(Path(__file__).with_name("serving_schemas.json").read_text())
OURS = ("Deployment", "Service")  # Kubernetes' own kinds
LEADER, NLABEL = "leaderworkerset.sigs.k8s.io", "cloud.google.com/gke-"


@dataclass(frozen=True)
class Case:
    """By hand: what a replica on a slice is in a cluster."""

    ways: dict[str, int]
    hosts: int
    chips: int  # of a pod
    resource: str
    labels: dict[str, str]
    devices: int = 1  # of a chip


def _tpu(name: str, topology: str) -> dict[str, str]:
    return {f"{NLABEL}tpu-accelerator": name, f"{NLABEL}tpu-topology": topology}


def _gpu(name: str) -> dict[str, str]:
    return {f"{NLABEL}accelerator": name}


GPU, TPU = "nvidia.com/gpu", "google.com/tpu"
ARM = {"kubernetes.io/arch": "arm64"}
CASES = {
    "h100:1": Case({}, 1, 1, GPU, _gpu("nvidia-h100-mega-80gb")),
    "h100:8": Case({"tp": 8}, 1, 8, GPU, _gpu("nvidia-h100-mega-80gb")),
    "h100:8x2": Case({"tp": 8, "pp": 2}, 2, 8, GPU, _gpu("nvidia-h100-mega-80gb")),
    "h200:8x2": Case({"dp": 16, "ep": 16}, 2, 8, GPU, _gpu("nvidia-h200-141gb")),
    "gb200:8": Case({"tp": 4, "dp": 2, "ep": 8}, 2, 4, GPU, _gpu("nvidia-gb200") | ARM),
    "v5e:2x2": Case({"tp": 4}, 1, 4, TPU, _tpu("tpu-v5-lite-podslice", "2x2")),
    "v5e:2x4": Case({"tp": 8}, 1, 8, TPU, _tpu("tpu-v5-lite-podslice", "2x4")),
    "v6e:4x4": Case({"tp": 16}, 4, 4, TPU, _tpu("tpu-v6e-slice", "4x4")),
    "tpu7x:2x2x2": Case({"tp": 8}, 2, 4, TPU, _tpu("tpu7x", "2x2x2"), devices=2),
}


KINDS = {on: parse_slice(on).chip.kind for on in CASES}
RUNS = [(engine, on) for engine in SERVERS for on in CASES if KINDS[on] in servers()[engine].chips]


def _fleet(on: str, **changes: Any) -> ServedFleet:
    changes = {"model": "deepseek-v3", "ways": CASES[on].ways, "weights": "bf16", **changes}
    return replace(FLEET, on=parse_slice(on), compute="bf16", **changes)


def _documents(fleet: ServedFleet, engine: str = "vllm", **more: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(export_manifest(fleet, servers()[engine], **more).text))


def _of(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def _pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Templates: that which listens first."""
    group = document["spec"].get("leaderWorkerTemplate")
    if group is None:
        return [document["spec"]["template"]]
    return [group["leaderTemplate"], group["workerTemplate"]]


def _flag(words: list[str], name: str) -> str | None:
    flat = [part for word in words for part in word.split(" ")]  # of a shell's line as well
    return flat[flat.index(name) + 1] if name in flat else None


@pytest.mark.parametrize(("engine", "on"), RUNS)
def test_a_replica_has_the_pods_and_chips_of_its_slice(engine: str, on: str) -> None:
    case, fleet = CASES[on], _fleet(on)
    runs = _of(_documents(fleet, engine), "Deployment" if case.hosts == 1 else "LeaderWorkerSet")
    assert runs["spec"]["replicas"] == fleet.replicas
    if case.hosts > 1:
        assert runs["spec"]["leaderWorkerTemplate"]["size"] == case.hosts
        together = runs["metadata"].get("annotations", {}).get(f"{LEADER}/exclusive-topology")
        assert together == (f"{NLABEL}nodepool" if case.resource == TPU else None)
    for pod in _pods(runs):
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {case.resource: case.chips}
        assert pod["spec"]["nodeSelector"] == case.labels
    assert case.hosts * case.chips == fleet.on.num_chips


@pytest.mark.parametrize("gateway", [None, "front"])
@pytest.mark.parametrize(("engine", "on"), RUNS)
def test_manifests_are_what_the_published_schemas_ask_for(
    engine: str, gateway: str | None, on: str
) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the oracle extra").validate
    for prefill in (0, 1):
        documents = _documents(_fleet(on, prefill_replicas=prefill), engine, gateway=gateway)
        for document in documents:
            if document["kind"] in OURS:
                validate(document, "1.31", strict=True)
            else:
                jsonschema.validate(document, SCHEMAS[document["kind"]])
            for pod in _pods(document) if "Set" in document["kind"] else ():
                whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **pod}
                validate(whole | {"metadata": {"name": "x"}}, "1.31", strict=True)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_typo_is_no_field_of_a_schema(kind: str) -> None:
    if kind.startswith("$"):
        return
    documents = _documents(_fleet("gb200:8"), gateway="front")
    found = _of(documents, kind)
    found["spec"]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(found, SCHEMAS[kind])


@pytest.mark.parametrize(("engine", "on"), RUNS)
def test_degrees_multiply_to_the_devices_of_all_hosts(engine: str, on: str) -> None:
    """What vLLM and SGLang check when they start: their world is as large as the group."""
    case = CASES[on]
    runs = _documents(_fleet(on), engine)[-2]
    words = _pods(runs)[0]["spec"]["containers"][0]["command"]
    names = {"vllm": ("tensor-parallel", "pipeline-parallel", "data-parallel")}
    own = names.get(engine, ("tp", "pp"))  # SGLang's tp has the ranks of dp in it
    degrees = [int(_flag(words, f"--{name}-size") or 1) for name in own]
    product = degrees[0] * degrees[1] * (degrees[2] if len(degrees) > 2 else 1)
    assert product == case.hosts * case.chips * case.devices


def test_all_hosts_of_a_gpu_replica_run_the_engine_and_the_first_one_listens() -> None:
    for engine, where in (("vllm", "--master-addr"), ("sglang", "--dist-init-addr")):
        runs = _of(_documents(_fleet("h100:8x2"), engine), "LeaderWorkerSet")
        first, other = (pod["spec"]["containers"][0] for pod in _pods(runs))
        for words in (first["command"], other["command"]):
            assert _flag(words, "--nnodes") == "$(LWS_GROUP_SIZE)"
            assert _flag(words, "--node-rank") == "$(LWS_WORKER_INDEX)"
            assert (_flag(words, where) or "").startswith("$(LWS_LEADER_ADDRESS)")
        assert "startupProbe" in first and "startupProbe" not in other
    runs = _of(_documents(_fleet("h100:8x2")), "LeaderWorkerSet")
    first, other = (pod["spec"]["containers"][0]["command"] for pod in _pods(runs))
    assert "--headless" in other and "--headless" not in first


def test_hosts_of_a_tpu_replica_gather_before_the_engine_starts_on_one() -> None:
    runs = _of(_documents(_fleet("v6e:4x4")), "LeaderWorkerSet")
    first, other = (pod["spec"]["containers"][0]["command"] for pod in _pods(runs))
    gathered, engine = first[2].split(" && exec ")
    assert "leader --ray_cluster_size=$(LWS_GROUP_SIZE)" in gathered
    assert engine.startswith("vllm serve deepseek-v3 --tensor-parallel-size 16")
    assert "worker --ray_address=$(LWS_LEADER_ADDRESS)" in other[2] and "vllm serve" not in other[2]


@pytest.mark.parametrize(("engine", "on"), RUNS)
def test_those_in_front_find_exactly_the_pods_that_listen(engine: str, on: str) -> None:
    for gateway, prefill in ((None, 0), (None, 1), ("front", 0), ("front", 1)):
        documents = _documents(_fleet(on, prefill_replicas=prefill), engine, gateway=gateway)
        front = _of(documents, "InferencePool" if gateway else "Service")
        selector = front["spec"]["selector"]
        asked = selector.get("matchLabels", selector).items()
        ports = front["spec"].get("targetPorts") or front["spec"]["ports"]
        port = ports[0].get("number") or ports[0]["targetPort"]
        for runs in (d for d in documents if d["kind"] in ("Deployment", "LeaderWorkerSet")):
            first, *others = _pods(runs)
            is_prefill = first["metadata"]["labels"]["role"] == "prefill"
            found = asked <= first["metadata"]["labels"].items()
            assert found == (not is_prefill or gateway is not None)
            assert not any("metadata" in pod for pod in others)
            container = first["spec"]["containers"][0]
            assert container["ports"] == [{"containerPort": port}]
            assert _flag(container["command"], "--port") == str(port)
            if engine == "sglang":  # whose default only the pod itself can reach
                assert _flag(container["command"], "--host") == "0.0.0.0"


def test_a_route_sends_to_the_pool_that_the_picker_answers_for() -> None:
    documents = _documents(_fleet("h100:8"), gateway="front")
    route, pool = _of(documents, "HTTPRoute"), _of(documents, "InferencePool")
    assert route["spec"]["parentRefs"] == [{"name": "front"}]
    (reference,) = route["spec"]["rules"][0]["backendRefs"]
    assert (reference["group"] + "/v1", reference["kind"]) == (pool["apiVersion"], pool["kind"])
    assert reference["name"] == pool["metadata"]["name"]
    assert "Service" not in {document["kind"] for document in documents}


@pytest.mark.parametrize("engine", SERVERS)
def test_a_pod_that_ends_finishes_what_is_open(engine: str) -> None:
    """Its grace covers the pause before SIGTERM and the drain that the engine was told."""
    fleet = _fleet("h100:8", drain_s=120)
    (pod,) = _pods(_of(_documents(fleet, engine), "Deployment"))
    container = pod["spec"]["containers"][0]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= pause + 120
    if engine == "vllm":  # which otherwise aborts
        assert _flag(container["command"], "--shutdown-timeout") == "120"


def test_an_update_never_needs_chips_that_nobody_pays_for() -> None:
    for on, where in (("h100:8", "strategy"), ("h100:8x2", "rolloutStrategy")):
        spec = _documents(_fleet(on, spare=2))[0]["spec"][where]
        update = spec.get("rollingUpdate") or spec["rollingUpdateConfiguration"]
        assert update == {"maxSurge": 0, "maxUnavailable": 2}


def test_hosts_that_share_nvlink_are_placed_in_one_domain_with_a_claim_on_it() -> None:
    documents = _documents(_fleet("gb200:8"))
    domain, runs = _of(documents, "ComputeDomain"), _of(documents, "LeaderWorkerSet")
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    for pod in _pods(runs):
        (claim,) = pod["spec"]["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == template
        assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]
        (term,) = pod["spec"]["affinity"]["podAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["labelSelector"]["matchLabels"] == {f"{LEADER}/name": runs["metadata"]["name"]}
        assert term["topologyKey"] == "nvidia.com/gpu.clique"
    assert "ComputeDomain" not in {d["kind"] for d in _documents(_fleet("h100:8x2"))}


def test_replicas_that_hand_over_caches_say_where_and_that_a_router_is_missing() -> None:
    found = export_manifest(_fleet("h100:8", prefill_replicas=1), servers()["vllm"])
    assert [loss.what for loss in found.losses] == ["prefill before generate"]
    prefill, generate, _ = yaml.safe_load_all(found.text)
    assert [d["spec"]["replicas"] for d in (prefill, generate)] == [1, FLEET.replicas - 1]
    for runs in (prefill, generate):
        (address,) = _pods(runs)[0]["spec"]["containers"][0]["env"]
        assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_engines_are_told_their_sizes_in_a_manifest_as_in_a_command() -> None:
    fleet = _fleet("h200:8x2", max_rows=1000, max_step_tokens=8192, kv="fp8")
    words = _pods(_documents(fleet)[0])[0]["spec"]["containers"][0]["command"]
    assert _flag(words, "--max-num-seqs") == "63"  # 1000 rows on 16 ranks
    assert _flag(words, "--max-num-batched-tokens") == "512"
    assert _flag(words, "--kv-cache-dtype") == "fp8"
    assert "--enable-prefix-caching" in words and "--enable-expert-parallel" in words


@pytest.mark.parametrize("model", ["7b", "Qwen/Qwen3-235B_A22B.x", "a" * 80, "yes"])
def test_names_are_labels_that_yaml_reads_as_text(model: str) -> None:
    for document in _documents(replace(_fleet("h100:8x2"), model=model)):
        name = document["metadata"]["name"]
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) < 50
    runs = _documents(replace(_fleet("h100:8x2"), model=model))[0]
    assert model in _pods(runs)[0]["spec"]["containers"][0]["command"]


def test_every_word_of_pods_is_used() -> None:
    """A word of servers.toml that nothing reads would look like a setting."""
    read = {"image", "listen", "hosts", "other", "address", "gather", "join", "env"}
    every: list[Server] = list(servers().values())
    assert {key for server in every for pod in server.pods.values() for key in pod} == read
