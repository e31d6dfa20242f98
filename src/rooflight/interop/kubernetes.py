"""A fleet as a manifest: a Deployment for each role and an InferencePool in front of them.

The pool is that of the Gateway API inference extension, `inference.networking.k8s.io/v1`, as read
at commit 84436a96b9e6 of 2026-08-18; node labels are those of GKE.
"""

import json
from collections.abc import Iterator

from rooflight.hardware.kubernetes import node_labels
from rooflight.interop.framework import Loss
from rooflight.interop.serving import ServedExport, ServedFleet, Server, command, export_commands

_PORT = 8000
_PICKER_PORT = 9002


def export_manifest(fleet: ServedFleet, server: Server) -> ServedExport:
    """YAML for `kubectl apply`; the endpoint picker named in it must be there."""
    losses = (*export_commands(fleet, server).losses, *_losses(fleet))
    head = [f"# {fleet.model} under {server.reference}; image and endpoint picker are yours"]
    head += [f"# lost: {loss.what}: {loss.because}" for loss in losses]
    parts = [_deployment(fleet, server, role, count) for role, count in fleet.roles.items()]
    text = "\n".join(head) + "\n" + "---\n".join([*parts, _pool(fleet)])
    return ServedExport("kubernetes", server.reference, text, losses)


def _losses(fleet: ServedFleet) -> Iterator[Loss]:
    if fleet.on.num_hosts > 1:
        yield Loss(
            f"{fleet.on.num_hosts} hosts a replica",
            "a Deployment has one pod a replica; use a LeaderWorkerSet with these words",
        )
    if fleet.on.chip.torus and not node_labels(fleet.on):
        yield Loss(f"nodes of {fleet.on.chip.name}", "no label that we know")


def _name(fleet: ServedFleet) -> str:
    return "".join(c if c.isalnum() else "-" for c in fleet.model.lower()).strip("-")


def _deployment(fleet: ServedFleet, server: Server, role: str, count: int) -> str:
    name = f"{_name(fleet)}-{role}"
    words = ", ".join(json.dumps(w) for w in [*command(fleet, server, role), "--port", f"{_PORT}"])
    chips = min(fleet.on.num_chips, fleet.on.chip.host_chips)
    node = fleet.on.chip.kubernetes
    resource = node.resource if node else "RESOURCE"
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {count}
  selector:
    matchLabels: {{app: {_name(fleet)}, role: {role}}}
  template:
    metadata:
      labels: {{app: {_name(fleet)}, role: {role}}}
    spec:
{_selector(fleet)}      containers:
      - name: {server.name}
        image: {server.name}
        command: [{words}]
        ports:
        - containerPort: {_PORT}
        resources:
          limits: {{{resource}: {chips}}}
"""


def _selector(fleet: ServedFleet) -> str:
    labels = node_labels(fleet.on) if fleet.on.chip.torus else {}
    lines = "".join(f"        {label}: {value}\n" for label, value in labels.items())
    return f"      nodeSelector:\n{lines}" if lines else ""


def _pool(fleet: ServedFleet) -> str:
    return f"""\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: {_name(fleet)}
spec:
  selector:
    matchLabels: {{app: {_name(fleet)}}}
  targetPorts:
  - number: {_PORT}
  endpointPickerRef:
    name: {_name(fleet)}-endpoint-picker
    port:
      number: {_PICKER_PORT}
"""
