"""A fleet as a manifest: what runs its replicas, and what stands in front of them.

In: a fleet and an engine. Out: YAML. A replica of one host is a pod of a Deployment, one of
several a group of a LeaderWorkerSet, whose first pod listens. In front is a Service, or an
InferencePool and the HTTPRoute of a Gateway that is there. Kinds that are not Kubernetes' own are
those of kubernetes-sigs lws 060ab4d (2026-08-21), gateway-api-inference-extension 84436a9
(2026-08-18), gateway-api 4564255 (2026-08-21) and NVIDIA's k8s-dra-driver-gpu 2240711 (2026-05-15);
node labels are those of GKE.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rooflight.hardware.kubernetes import node_labels, pod_chips
from rooflight.interop.framework import Loss
from rooflight.interop.serving import ServedExport, ServedFleet, Server, command, export_commands

_PORT = 8000
_PICKER_PORT = 9002
_LEAVE_S = 15  # until the last sender knows that a pod is to end
_START_S = 3600  # to pull an image, load weights, compile
_NAME = 40  # letters of a name; pods add to it and have 63
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")  # strings that YAML reads as such
_NOT_PLAIN = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}

Node = dict[str, Any]  # of YAML


def export_manifest(
    fleet: ServedFleet, server: Server, *, gateway: str | None = None
) -> ServedExport:
    """YAML for `kubectl apply`; controllers, gateway and endpoint picker must be there."""
    losses = (*export_commands(fleet, server).losses, *_losses(fleet))
    head = [f"# {fleet.model} under {server.reference}"]
    head += ["# yours: the checkpoint's path or name, image tags, secrets, CPU, memory and RDMA"]
    head += [f"# lost: {loss.what}: {loss.because}" for loss in losses]
    documents = [*_domain(fleet)]
    documents += [_replicas(fleet, server, role, count) for role, count in fleet.roles.items()]
    documents += _pool(fleet, gateway) if gateway else [_service(fleet)]
    text = "---\n".join("\n".join(_yaml(document)) + "\n" for document in documents)
    return ServedExport("kubernetes", server.reference, "\n".join(head) + "\n" + text, losses)


def _losses(fleet: ServedFleet) -> Iterator[Loss]:
    chip = fleet.on.chip
    if chip.kubernetes is None:
        yield Loss(f"pods of {chip.name}", "no resource that we know")
    elif not node_labels(fleet.on):
        yield Loss(f"nodes of {chip.name}", "no label that we know")
    if fleet.prefill_replicas:
        yield Loss(
            "prefill before generate",
            "who sends a request to both is yours: llm-d-router with its sidecar, SGLang's gateway",
        )


def _replicas(fleet: ServedFleet, server: Server, role: str, count: int) -> Node:
    name, hosts = f"{_name(fleet)}-{role}", _hosts(fleet)
    labels = {"app": _name(fleet), "role": role}
    if role != "serve":
        labels["llm-d.ai/role"] = {"generate": "decode"}.get(role, role)
    # No surge, for which no chips are paid; spares may be missing.
    update = {"maxSurge": 0, "maxUnavailable": max(1, fleet.spare)}
    template = {"metadata": {"labels": labels}, "spec": _pod(fleet, server, role)}
    if hosts == 1:
        return _document(
            "apps/v1",
            "Deployment",
            name,
            replicas=count,
            selector={"matchLabels": {"app": _name(fleet), "role": role}},
            strategy={"type": "RollingUpdate", "rollingUpdate": update},
            progressDeadlineSeconds=_START_S,
            template=template,
        )
    found = _document(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        name,
        replicas=count,
        rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": update},
        leaderWorkerTemplate={
            "size": hosts,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": template,
            "workerTemplate": {"spec": _pod(fleet, server, role, listens=False)},
        },
    )
    if fleet.on.chip.torus:  # a node pool is one slice
        key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
        found["metadata"]["annotations"] = {key: "cloud.google.com/gke-nodepool"}
    return found


def _pod(fleet: ServedFleet, server: Server, role: str, *, listens: bool = True) -> Node:
    node, name = fleet.on.chip.kubernetes, _name(fleet)
    resources: Node = {"limits": {node.resource if node else "RESOURCE": pod_chips(fleet.on)}}
    spec: Node = {}
    if labels := node_labels(fleet.on):
        spec["nodeSelector"] = labels
    if _crosses_nvlink(fleet):
        resources["claims"] = [{"name": "nvlink"}]
        spec["resourceClaims"] = [{"name": "nvlink", "resourceClaimTemplateName": name}]
        spec["affinity"] = {"podAffinity": _one_domain(f"{name}-{role}")}
    container: Node = {
        "name": server.name,
        "image": server.pod(fleet.on.chip.kind).get("image", "IMAGE"),
        "command": _command(fleet, server, role, listens=listens),
        **_env(fleet, server, role),
        "resources": resources,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if listens:
        healthy = {"httpGet": {"path": "/health", "port": _PORT}}
        container |= {
            "ports": [{"containerPort": _PORT}],
            "startupProbe": {**healthy, "periodSeconds": 10, "failureThreshold": _START_S // 10},
            "readinessProbe": {**healthy, "periodSeconds": 5, "timeoutSeconds": 5},
            "livenessProbe": {**healthy, "timeoutSeconds": 10, "failureThreshold": 6},
            "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVE_S}}},
        }
    spec["terminationGracePeriodSeconds"] = _LEAVE_S + fleet.drain_s + 30
    spec["containers"] = [container]
    spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return spec


def _command(fleet: ServedFleet, server: Server, role: str, *, listens: bool) -> list[str]:
    """Of the host that listens, or of another of its replica."""
    pod, words = server.pod(fleet.on.chip.kind), command(fleet, server, role)
    is_alone = _hosts(fleet) == 1
    if listens or "other" not in pod:
        listen: Sequence[str] = pod.get("listen", ())
        words += [word.format(port=_PORT, drain=fleet.drain_s) for word in listen]
    if is_alone:
        return words
    if "gather" in pod:
        start = f"{pod['gather']} && exec {shlex.join(words)}"
        return ["sh", "-c", start if listens else pod["join"]]
    return [*words, *pod.get("hosts", ()), *(() if listens else pod.get("other", ()))]


def _env(fleet: ServedFleet, server: Server, role: str) -> Node:
    pod = server.pod(fleet.on.chip.kind)
    given: Mapping[str, str] = pod.get("env", {}) if _hosts(fleet) > 1 else {}
    found: list[Node] = [{"name": name, "value": value} for name, value in given.items()]
    if role != "serve" and "address" in pod:
        own = {"fieldRef": {"fieldPath": "status.podIP"}}
        found.append({"name": pod["address"], "valueFrom": own})
    return {"env": found} if found else {}


def _hosts(fleet: ServedFleet) -> int:
    return fleet.on.num_chips // pod_chips(fleet.on)


def _crosses_nvlink(fleet: ServedFleet) -> bool:
    """Whether NVLink goes from host to host of a replica."""
    return fleet.on.chip.switched is not None and fleet.on.shape[0] > pod_chips(fleet.on)


def _domain(fleet: ServedFleet) -> Iterator[Node]:
    """NVIDIA's driver lets pods with a claim of it write to each other's memory by NVLink."""
    if _crosses_nvlink(fleet):
        kind, template = "resource.nvidia.com/v1beta1", {"name": _name(fleet)}
        channel = {"resourceClaimTemplate": template}
        yield _document(kind, "ComputeDomain", _name(fleet), numNodes=0, channel=channel)


def _one_domain(name: str) -> Node:
    """All pods of a group on hosts that share NVLink."""
    term = {
        "labelSelector": {"matchLabels": {"leaderworkerset.sigs.k8s.io/name": name}},
        "matchLabelKeys": ["leaderworkerset.sigs.k8s.io/group-index"],
        "topologyKey": "nvidia.com/gpu.clique",
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _service(fleet: ServedFleet) -> Node:
    *_, answers = fleet.roles
    return _document(
        "v1",
        "Service",
        _name(fleet),
        selector={"app": _name(fleet), "role": answers},
        ports=[{"name": "http", "port": _PORT, "targetPort": _PORT}],
    )


def _pool(fleet: ServedFleet, gateway: str) -> list[Node]:
    name, group = _name(fleet), "inference.networking.k8s.io"
    picker = {"name": f"{name}-endpoint-picker", "port": {"number": _PICKER_PORT}}
    pool = _document(
        f"{group}/v1",
        "InferencePool",
        name,
        selector={"matchLabels": {"app": name}},
        targetPorts=[{"number": _PORT}],
        endpointPickerRef=picker,
    )
    rule = {
        "backendRefs": [{"group": group, "kind": "InferencePool", "name": name}],
        "timeouts": {"request": "0s"},  # streams last as long as they last
    }
    route = _document(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        name,
        parentRefs=[{"name": gateway}],
        rules=[rule],
    )
    return [pool, route]


def _name(fleet: ServedFleet) -> str:
    """A DNS label that begins with a letter."""
    text = re.sub("[^a-z0-9]+", "-", fleet.model.lower())
    return (text if text[:1].isalpha() else f"m-{text}")[:_NAME].strip("-")


def _document(version: str, kind: str, name: str, **spec: Any) -> Node:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _yaml(node: Node | list[Any]) -> Iterator[str]:
    """Lines of a mapping or list.

    >>> print(*_yaml({"a": [{"b": "x", "c": [1]}, "8"]}), sep=chr(10))
    a:
    - b: x
      c:
      - 1
    - "8"
    """
    if isinstance(node, list):
        for value in node:
            first, *rest = _yaml(cast("Node", value)) if _is_mapping(value) else [_scalar(value)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
        return
    for key, value in node.items():
        if value and type(value) in (dict, list):
            yield f"{_scalar(key)}:"
            indent = "  " * _is_mapping(value)
            yield from (indent + line for line in _yaml(cast("Node", value)))
        else:
            yield f"{_scalar(key)}: {_scalar(value)}"


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN:
        return value
    return json.dumps(value)
