"""From a model on a slice to what a simulation needs: step model, limits, KV transfer.

In: a model, a slice, a serving layout, dtypes. Out: a `Setup`, the replica that fleets are made of.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rooflight import hardware
from rooflight.batching.request import Limits, Policy
from rooflight.dtypes import Dtype
from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import kv_bytes, kv_bytes_per_token
from rooflight.models.graph.ops import Graph
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.simulate.clock import OffloadTimes, StepClock, floor_seconds
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.run import PoolSplit
from rooflight.plan.serving.step.adapters import Adapters
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.draft import Draft
from rooflight.plan.serving.step.experts import ExpertLoads
from rooflight.plan.serving.step.layout import Precision, ServingLayout, precision_of
from rooflight.plan.serving.step.memory import ServingMemory
from rooflight.plan.serving.step.model import StepModel

_MOST_BLOCKS = 1 << 20  # of one replica; a simulation keeps a record of each


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Choices of an operator: how many rows and tokens a step has, how long the queue may be."""

    max_rows: int = 256
    max_step_tokens: int = 2048
    block_tokens: int = 128
    max_waiting: int = 1000
    host_bytes: int = 0  # of host memory, for cached prefixes that HBM lets go
    ssd_bytes: int = 0  # for what host memory lets go
    ssd_bytes_per_s: float | None = None  # None: one drive of `hardware/ssd.toml`


@dataclass(frozen=True, slots=True)
class Features:
    """What is served beside the model itself, or as it is not by itself."""

    draft: Draft | None = None
    experts: ExpertLoads | None = None  # None: all are visited alike
    adapters: Adapters | None = None

    def check(self, model: ModelSpec, layout: ServingLayout) -> None:
        """Raises for a layout that was asked for and cannot have them."""
        if self.draft:
            self.draft.check(layout)
        if self.experts:
            self.experts.check(model, layout)
        if self.adapters:
            self.adapters.check(model)


@dataclass(frozen=True, slots=True)
class Setup:
    """One replica: a slice that serves a model under a layout."""

    model: ModelSpec
    on: Slice
    layout: ServingLayout
    precision: Precision
    sizes: SchedulerLimits = SchedulerLimits()
    features: Features = Features()

    @property
    def draft(self) -> Draft | None:
        return self.features.draft

    @property
    def told(self) -> list[str]:
        """A sentence on its dtypes, if nobody chose them, and on each of its features."""
        draft, experts, adapters = self.draft, self.features.experts, self.features.adapters
        loads = experts and experts.told(self.model, self.layout)
        packed = self.model.weights != "bf16" and self.precision == precision_of(self.model, None)
        published = "weights as they are published; `--dtypes` says otherwise" if packed else ""
        return [str(one) for one in (published, draft, loads, adapters) if one]

    @property
    def document(self) -> dict[str, object]:
        """Its features as JSON."""
        draft, experts, adapters = self.draft, self.features.experts, self.features.adapters
        found: dict[str, object] = {"draft": draft.document} if draft else {}
        if experts:
            found["experts"] = experts.document(self.model, self.layout)
        if adapters:
            found["adapters"] = adapters.document
        return found

    @property
    def can_be(self) -> bool:
        """False where rounds are not modelled, or redundant experts are not dealt out evenly."""
        try:
            self._check()
        except UsageError:
            return False
        return True

    def _check(self) -> None:
        if self.draft:
            self.draft.check(self.layout)
        if self.features.experts:
            self.features.experts.balance(self.model, self.layout)

    def memory(self) -> ServingMemory:
        """Of a replica, with what proposes, redundant experts and adapters."""
        on, precision, tokens = self.on, self.precision, self.sizes.max_step_tokens
        model, beside, draft = self.model, None, self.draft
        experts, adapters = self.features.experts, self.features.adapters
        redundant = (experts and experts.redundant) or 0
        if draft:
            model = draft.held_by(model)
        if draft and draft.model:
            beside = ServingMemory(draft.model, on, draft.layout(on), precision, tokens)
        return ServingMemory(model, on, self.layout, precision, tokens, beside, redundant, adapters)

    def steps(self) -> StepModel:
        """Of its model; what proposes draft tokens has its own."""
        what, own = (self.model, self.on, self.layout, self.precision), self.features
        return serving_model(*what, experts=own.experts, adapters=own.adapters)

    def cost(self) -> StepCost:
        """Expected seconds of a step, uncalibrated unless the catalog has an overhead."""
        return step_curve(self.steps())

    def limits(self, policy: Policy = Policy.CONTINUOUS) -> Limits:
        """The KV cache is all that weights and activations leave of HBM."""
        sizes = self.sizes
        self._check()
        positions = sizes.max_rows * self.memory().longest_context(sizes.max_rows)
        num_blocks = min(positions // sizes.block_tokens, _MOST_BLOCKS)
        if num_blocks < 1:
            raise UsageError(
                f"{self.model.name} leaves no room for a KV cache on {self.on} under"
                f" {self.layout} with {sizes.max_rows} rows",
                hint="take more chips, smaller dtypes or fewer rows; `rooflight fit serve` has"
                " the bytes",
            )
        return Limits(
            sizes.max_rows,
            sizes.max_step_tokens,
            num_blocks,
            sizes.block_tokens,
            sizes.max_waiting,
            policy=policy,
            host_blocks=int(sizes.host_bytes / self.token_bytes) // sizes.block_tokens,
            ssd_blocks=int(sizes.ssd_bytes / self.token_bytes) // sizes.block_tokens,
        )

    @property
    def token_bytes(self) -> float:
        """Of the KV cache of one position."""
        return kv_bytes_per_token(model_graph(self.model), self.precision.kv)

    @property
    def offload(self) -> OffloadTimes | None:
        """Each chip reads its part of a block over its own link, all share the drives."""
        if not self.sizes.host_bytes:
            return None
        rate = self.on.chip.pcie_bytes_per_s
        if rate is None:
            raise UsageError(
                f"{self.on.chip.title} has no bandwidth to its host in the catalog",
                hint="leave out --host-memory, or add pcie_bytes_per_s in your own chip file",
            )
        drive, block_bytes = _drive(), self.sizes.block_tokens * self.token_bytes
        read_s = block_bytes / (self.sizes.ssd_bytes_per_s or drive["read_bytes_per_s"])
        write_s = read_s * drive["read_bytes_per_s"] / drive["write_bytes_per_s"]
        restore_s = block_bytes / (rate * self.on.num_chips)
        return OffloadTimes(restore_s, read_s, write_s, drive["latency_s"])

    def transfer(self) -> Transfer:
        """The cache of a prompt over the network between two such slices."""
        graph, kv = model_graph(self.model), self.precision.kv
        move = hand_over(graph, 1, kv, self.on, self.on)
        return Transfer(kv_bytes_per_token(graph, kv), move.bytes_per_s)

    def peer(
        self,
        replicas: int,
        *,
        prefill_replicas: int | None,
        input_tokens: int,
        output_tokens: int,
        cost: StepCost,
    ) -> PoolSplit:
        """So many replicas of both kinds; unless said, by the work of a full step for each.

        A prompt costs its prefill alone; its tokens per step of all rows, shared by all rows.
        """
        if prefill_replicas is None:
            rows, clock = self._rows(input_tokens + output_tokens), StepClock(cost)
            prompt_s = floor_seconds(clock, input_tokens=input_tokens, output_tokens=1).ttft_s
            context = input_tokens + output_tokens // 2
            step_s = clock.step(rows=rows, kv=rows * context, chunk_tokens=0, attended=0)
            tokens_s = (output_tokens - 1) * step_s / rows
            share = prompt_s / (prompt_s + tokens_s)
            prefill_replicas = min(max(1, round(share * replicas)), replicas - 1)
        if not 1 <= prefill_replicas < replicas:
            raise UsageError(
                f"{prefill_replicas} of {replicas} replicas prefill: one kind is missing",
                hint="take at least one replica of each kind, so two in all: --replicas 2",
            )
        return PoolSplit(prefill_replicas, replicas - prefill_replicas, self.transfer())

    def _rows(self, context: int) -> int:
        """Sequences of this length that a replica holds at once."""
        limits = self.limits()
        return max(1, min(limits.max_rows, limits.pool_tokens // context))


@dataclass(frozen=True, slots=True)
class KvMove:
    """A cache on its way: its bytes, and the rate of all chips or hosts together."""

    nbytes: int
    bytes_per_s: float
    over: str

    @property
    def seconds(self) -> float:
        return self.nbytes / self.bytes_per_s


def hand_over(graph: Graph, positions: int, dtype: Dtype, source: Slice, target: Slice) -> KvMove:
    """A finished prompt's cache from a prefill slice to a generate slice, over the DCN.

    Every host sends or receives its part at once, so the side with less bandwidth binds. It stops
    holding where other transfers share the network, and it is hidden where layers are sent as
    they end.
    """
    rate = min(_dcn(source), _dcn(target))
    return KvMove(kv_bytes(graph, batch=1, seq=positions, dtype=dtype), rate, "DCN")


@cache
def _drive() -> dict[str, float]:
    return tomllib.loads(Path(hardware.__file__).with_name("ssd.toml").read_text(encoding="utf-8"))


def _dcn(on: Slice) -> float:
    """The network egress of all hosts; a chip behind switches brings its own port."""
    if on.chip.switched:
        return on.num_chips * on.chip.switched.nic_bytes_per_s
    if on.chip.dcn_bytes_per_s_per_host is None:
        raise UsageError(
            f"{on.chip.title} has no DCN bandwidth in its catalog, so no cache can leave {on}",
            hint="choose another chip, or add dcn_bytes_per_s_per_host in your own chip file",
        )
    return on.num_hosts * on.chip.dcn_bytes_per_s_per_host
