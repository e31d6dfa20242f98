"""A run as a job of a cluster: a Kubernetes JobSet, a script of Slurm or of Ray. Text only.

One pod or task per host, each with the same command but for its number; host 0 leads. Nodes, chips
of a node and labels come from the plan's slice and the catalog; what neither knows (image, volume)
is a flag, and a word in capitals where that is not given.
"""

import json
import os.path
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from rooflight.errors import UsageError
from rooflight.hardware.kubernetes import node_labels
from rooflight.hardware.slice import Slice
from rooflight.train.worker import PREEMPTED

_CONFIG, _CLAIM_AT = "/etc/rooflight", "/rooflight"  # where the plan and the claim are mounted
_LONGEST_NAME = 40  # a pod's name, which ends in slice, host and five letters, has 63


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """What the files need to know."""

    model: str
    run: str  # the file of the run, and what is in it
    text: str
    words: tuple[str, ...]  # of the command after that file, less those that say which host
    paths: tuple[str, ...]  # data and run folder
    folder: str  # that relative paths begin in
    hosts: int
    on: Slice
    port: int
    is_cpu: bool = False  # devices of the hosts' CPUs stand for the chips
    image: str = "IMAGE"
    claim: str = "CLAIM"

    @property
    def chips(self) -> int:
        """Of a host."""
        return self.on.num_chips // self.hosts

    @property
    def name(self) -> str:
        """A DNS label that begins with a letter."""
        text = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.model.lower())
        return f"rooflight-{text}"[:_LONGEST_NAME].rstrip("-")


def jobset(job: ClusterJob) -> str:
    """A JobSet (jobset.x-k8s.io/v1alpha2): a Job per slice, and the plan as a ConfigMap before it.

    A host that was told to stop ends with 75, and the set begins again however often; after other
    failures it does so a few times.
    """
    node = job.on.chip.kubernetes
    if node is None and not job.is_cpu:
        raise UsageError(
            f"the catalog does not say how Kubernetes counts a {job.on.chip.title}",
            hint="write [facts.kubernetes] in its file, as `rooflight chips v5e --toml` has it",
        )
    is_mounted = not job.run.endswith(".py")  # which names files of its own
    run = f"{_CONFIG}/plan.json" if is_mounted else job.run
    leader = f"{job.name}-slice-0-0.{job.name}:{job.port}"
    words = ["rooflight", "launch", run, *job.words, "--hosts", str(job.hosts), "--leader", leader]
    return (_config_map(job) if is_mounted else "") + _JOBSET.format(
        name=job.name,
        slices=job.on.num_slices,
        hosts=job.hosts // job.on.num_slices,
        preempted=PREEMPTED,
        image=job.image,
        claim=job.claim,
        port=job.port,
        mount=json.dumps(_mount(job.paths if is_mounted else (*job.paths, job.run))),
        command="\n".join(f"              - {json.dumps(word)}" for word in words),
        place="" if job.is_cpu else _place(job.on),
        chips="" if job.is_cpu or node is None else _RESOURCES.format(node.resource, job.chips),
        network=_HOST_NETWORK if job.on.num_slices > 1 and not job.is_cpu else "",
        together=_TOGETHER if job.on.chip.torus and not job.is_cpu else "",
        plan_mount=_PLAN_MOUNT.format(_CONFIG) if is_mounted else "",
        plan_volume=_PLAN_VOLUME.format(job.name) if is_mounted else "",
    )


def slurm(job: ClusterJob) -> str:
    """A script for `sbatch`; the first node of the allocation leads.

    Slurm itself puts the job back when a node fails, the script when its hosts were told to stop.
    """
    is_gpu = job.on.chip.kind == "gpu" and not job.is_cpu
    is_whole = not is_gpu or job.chips == job.on.chip.host_chips
    where = f"--hosts {job.hosts} --host $SLURM_PROCID --leader $LEADER"
    command = f"exec {shlex.join(['rooflight', 'launch', job.run, *job.words])} {where}"
    return _SLURM.format(
        name=job.name,
        hosts=job.hosts,
        gpus=f"#SBATCH --gpus-per-node={job.chips}\n" if is_gpu else "",
        whole="#SBATCH --exclusive\n#SBATCH --mem=0\n" if is_whole else "",
        preempted=PREEMPTED,
        folder=shlex.quote(job.folder),
        command=shlex.quote(command),
        port=job.port,
    )


def ray(job: ClusterJob) -> str:
    """A program of plain Ray actors, one per host; it begins all again when one is lost."""
    kind = "CPU" if job.is_cpu else job.on.chip.kind.upper()
    words = ["rooflight", "launch", job.run, *job.words, "--hosts", str(job.hosts)]
    return _RAY.format(
        command=json.dumps(words, indent=4),
        folder=json.dumps(job.folder),
        hosts=job.hosts,
        port=job.port,
        preempted=PREEMPTED,
        node=json.dumps({kind: 1 if job.is_cpu else job.chips}),
    )


FORMS: dict[str, Callable[[ClusterJob], str]] = {"jobset": jobset, "slurm": slurm, "ray": ray}


def num_hosts(form: str, on: Slice, given: int | None = None) -> int:
    """Hosts of all slices: as many as are given, or as the chips of the slice need.

    >>> from rooflight.hardware.slice import parse_slice
    >>> v5e, h100 = parse_slice("2*v5e:4x4"), parse_slice("h100:8x16")
    >>> num_hosts("jobset", v5e), num_hosts("slurm", v5e), num_hosts("ray", h100)
    (8, 4, 16)
    """
    most, node = on.chip.host_chips, on.chip.kubernetes
    own = (node and node.chips_per_node) if form != "slurm" else None
    together = on.shape[0] if on.chip.switched else on.chips_per_slice
    hosts = given or max(1, on.num_chips // min(own or most, together))
    if on.num_chips % hosts or hosts % on.num_slices or on.num_chips > hosts * most:
        raise UsageError(
            f"{on.num_chips} chips of {on} are not {hosts} hosts of at most {most} chips",
            hint="leave --hosts out: the plan's slice says how many there are",
        )
    return hosts


def _place(on: Slice) -> str:
    lines = "".join(f"              {key}: {value}\n" for key, value in node_labels(on).items())
    return f"            nodeSelector:\n{lines}" if lines else ""


def _mount(paths: tuple[str, ...]) -> str:
    """The folder that the claim is mounted at: all paths of the run are below it."""
    if not any(map(os.path.isabs, paths)):
        return _CLAIM_AT
    if all(map(os.path.isabs, paths)):
        parent = os.path.commonpath([os.path.dirname(os.path.normpath(path)) for path in paths])
        if parent != "/":
            return parent
    raise UsageError(
        f"{' and '.join(paths)} are not in one folder, which a claim could hold",
        hint="write --data tokens --out run: they are then in the claim",
    )


def _config_map(job: ClusterJob) -> str:
    lines = "".join(f"    {line}\n" for line in job.text.splitlines())
    return f"""apiVersion: v1
kind: ConfigMap
metadata:
  name: {job.name}
data:
  plan.json: |
{lines}---
"""


_JOBSET = (files("rooflight.train") / "jobset.txt").read_text("utf-8")
_RAY = (files("rooflight.train") / "ray.txt").read_text("utf-8")
_SLURM = (files("rooflight.train") / "slurm.txt").read_text("utf-8")
# A Job has a node pool to itself: that is one slice.
_TOGETHER = """  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
"""
# Slices talk by the network of their nodes.
_HOST_NETWORK = """            hostNetwork: true
            dnsPolicy: ClusterFirstWithHostNet
"""
_RESOURCES = """              resources:
                requests:
                  {0}: {1}
                limits:
                  {0}: {1}
"""
_PLAN_MOUNT = """              - name: plan
                mountPath: {}
                readOnly: true
"""
_PLAN_VOLUME = """            - name: plan
              configMap:
                name: {}
"""
