"""A run as a job of a cluster: a Kubernetes JobSet, or a Slurm script. Text only.

One pod or task a host, each with the same command but for its number; host 0 leads. What the plan
does not know (image, volume, queue) is a name in capitals to fill in.
"""

import json
import shlex
from dataclasses import dataclass
from importlib.resources import files

from rooflight.hardware.slice import Slice


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """What the files need to know."""

    name: str
    words: tuple[str, ...]  # of the command, less those that say which host
    hosts: int
    on: Slice
    port: int


_ACCELERATORS = {  # of Google Kubernetes Engine
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}


def jobset(job: ClusterJob) -> str:
    """A JobSet (jobset.x-k8s.io/v1alpha2): one indexed job, a headless service for its hosts.

    A preempted host ends with 75, and the set begins again: the run goes on where it was saved.
    """
    leader = f"{job.name}-hosts-0-0.{job.name}:{job.port}"
    words = [*job.words, "--hosts", str(job.hosts), "--host", "$(HOST)", "--leader", leader]
    lines = "\n".join(f"              - {json.dumps(word)}" for word in words)
    return _JOBSET.format(
        name=job.name, hosts=job.hosts, command=lines, place=_place(job.on), port=job.port
    )


def slurm(job: ClusterJob) -> str:
    """A script for `sbatch`; the first node of the allocation leads."""
    where = f"--hosts {job.hosts} --host $SLURM_PROCID --leader $LEADER"
    command = shlex.quote(f"{shlex.join(job.words)} {where}")
    return _SLURM.format(name=job.name, hosts=job.hosts, command=command, port=job.port)


def _place(on: Slice) -> str:
    accelerator = _ACCELERATORS.get(on.chip.name)
    if accelerator is None:
        return "              NODE-LABEL: VALUE\n"
    shape = "x".join(map(str, on.shape))
    return (
        f"              cloud.google.com/gke-tpu-accelerator: {accelerator}\n"
        f"              cloud.google.com/gke-tpu-topology: {shape}\n"
    )


_JOBSET = (files("rooflight.train") / "jobset.txt").read_text("utf-8")
_SLURM = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@300
#SBATCH --requeue
LEADER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):{port}
export LEADER
srun bash -c {command}
"""
