"""One replica as people write it: a slice, a layout, and what is served beside the model."""

from rooflight.api.values import Count, Number, slice_of
from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY, ROOFS
from rooflight.hardware.slice import Slice
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.simulate.setup import Features, SchedulerLimits, Setup
from rooflight.plan.serving.step.adapters import MOST_ADAPTERS, MOST_RANK, RANK, Adapters
from rooflight.plan.serving.step.draft import ACCEPTED, MOST_DRAFT, Draft, accepted_share
from rooflight.plan.serving.step.experts import (
    MOST_SKEW,
    ExpertLoads,
    nearest_skew,
    read_counts,
)
from rooflight.plan.serving.step.layout import ServingLayout, parse_serving_layout, precision_of
from rooflight.units import positive, whole

MOST_QUEUED = 10**9
SIZES = SchedulerLimits()
_PADDING = 512  # of a vocabulary, that sizes of one family may differ by


def read_setup(
    model: str | ModelSpec,
    *,
    on: str | Slice,
    layout: str | None = None,
    dtypes: str | None = None,
    engine: str = ANY,
    rows: Count | None = None,
    step_tokens: Count | None = None,
    block_tokens: Count = SIZES.block_tokens,
    max_waiting: Count = SIZES.max_waiting,
    draft_tokens: Count | None = None,
    acceptance: Number | None = None,
    draft_model: str | ModelSpec | None = None,
    expert_skew: Number | None = None,
    redundant_experts: Count | None = None,
    adapters: Count | None = None,
    adapter_rank: Count | None = None,
    adapters_resident: Count | None = None,
) -> Setup:
    """One replica: tensor parallel over all chips of its slice unless a layout is given."""
    spec, chips = load_model(model), slice_of(on)
    own = asked_sizes(rows, step_tokens).on(chips.chip, engine_of(engine))
    split = parse_serving_layout(layout) if layout else ServingLayout(tp=chips.num_chips)
    sizes = SchedulerLimits(
        own.max_rows,
        own.max_step_tokens,
        whole("--block-tokens", block_tokens, most=10**5),
        whole("--max-waiting", max_waiting, most=MOST_QUEUED),
    )
    features = read_features(
        spec,
        draft_tokens=draft_tokens,
        acceptance=acceptance,
        draft_model=draft_model,
        expert_skew=expert_skew,
        redundant_experts=redundant_experts,
        adapters=adapters,
        adapter_rank=adapter_rank,
        adapters_resident=adapters_resident,
    )
    if layout:
        features.check(spec, split)
    return Setup(spec, chips, split, precision_of(spec, dtypes), sizes, features)


def read_features(
    model: ModelSpec,
    *,
    draft_tokens: Count | None,
    acceptance: Number | None,
    draft_model: str | ModelSpec | None,
    expert_skew: Number | None,
    redundant_experts: Count | None,
    adapters: Count | None,
    adapter_rank: Count | None,
    adapters_resident: Count | None,
) -> Features:
    """What a replica serves beside the model, or as it is not by itself."""
    return Features(
        read_draft(model, draft_tokens, acceptance, draft_model),
        read_experts(model, expert_skew, redundant_experts),
        read_adapters(model, adapters, adapter_rank, adapters_resident),
    )


def read_adapters(
    model: ModelSpec, count: Count | None, rank: Count | None, resident: Count | None
) -> Adapters | None:
    """LoRA adapters; all of them are in HBM unless fewer are said to be."""
    own = {"--adapter-rank": rank, "--adapters-resident": resident}
    given = [flag for flag, value in own.items() if value is not None]
    if count is None and given:
        raise UsageError(f"{given[0]} without adapters", hint="add --adapters 32")
    number = 0 if count is None else whole("--adapters", count, least=0, most=MOST_ADAPTERS)
    if not number:
        return None
    wide = RANK if rank is None else whole("--adapter-rank", rank, most=MOST_RANK)
    held = number if resident is None else whole("--adapters-resident", resident, most=number)
    found = Adapters(number, wide, held)
    found.check(model)
    return found


def read_draft(
    drafted_for: ModelSpec,
    tokens: Count | None,
    acceptance: Number | None,
    model: str | ModelSpec | None,
) -> Draft | None:
    """Tokens proposed ahead of each step; by a further layer of the model unless one is named.

    `acceptance` is the chance of a draft token, or above 1 the tokens of a step.
    """
    given = [
        f for f, v in (("--acceptance", acceptance), ("--draft-model", model)) if v is not None
    ]
    if tokens is None and given:
        raise UsageError(f"{given[0]} without draft tokens", hint="add --draft-tokens 3")
    ahead = 0 if tokens is None else whole("--draft-tokens", tokens, least=0, most=MOST_DRAFT)
    if not ahead:
        return None
    asked = ACCEPTED if acceptance is None else positive("--acceptance", acceptance, example="0.7")
    own = None if model is None else load_model(model)
    if own and abs(own.vocab - drafted_for.vocab) > _PADDING:
        raise UsageError(
            f"--draft-model must have the vocabulary of {drafted_for.name}"
            f" ({drafted_for.vocab:,}), got {own.name} ({own.vocab:,})",
            hint="take a smaller model of the same family",
        )
    return Draft(ahead, accepted_share(asked, ahead), own)


def read_experts(
    model: ModelSpec, skew: Number | None, redundant: Count | None
) -> ExpertLoads | None:
    """How unevenly experts are visited: an exponent, or a file of counts; and replicas of EPLB."""
    few = None if redundant is None else whole("--redundant-experts", redundant, least=0, most=4096)
    try:
        exponent, counts = float(skew or 0), ()
    except ValueError:
        counts = read_counts(str(skew), model)
        exponent = nearest_skew(counts)
    if not counts and not 0 <= exponent <= MOST_SKEW:
        raise UsageError(
            f"--expert-skew must be from 0 to {MOST_SKEW:g}, got {exponent:g}",
            hint="write 0.5, or a file with counts of tokens by expert",
        )
    if few is None and not counts and not exponent:
        return None
    loads = ExpertLoads(exponent, counts, few)
    loads.balance(model, ServingLayout())  # has experts
    return loads


def asked_sizes(rows: Count | None, step_tokens: Count | None) -> AskedSizes:
    """What a step holds, where anybody says so."""
    return AskedSizes(
        None if rows is None else whole("--rows", rows, most=10**5),
        None if step_tokens is None else whole("--step-tokens", step_tokens, most=10**7),
    )


def engine_of(name: str) -> str | None:
    """Whose calibration; None is the roofs'."""
    return None if name == ROOFS else name
