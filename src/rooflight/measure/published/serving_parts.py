"""A question's parts: what one generated token and one prompt cost each part of the hardware.

In: a `ServingQuestion`, or a `StepModel` and its load. Out: `ServingParts`: seconds at the rates of
the catalog, and counts. They are sums over the terms of the step model; nothing is worked out
anew. Everything but the experts that are read is linear in the sequences of a step.
"""

from dataclasses import dataclass

from rooflight.measure.published.serving_question import ServingQuestion
from rooflight.plan.serving.simulate.replay import replayed_model
from rooflight.plan.serving.step.calibrated import StepSums, generate_sums, prompt_sums
from rooflight.plan.serving.step.model import StepModel

_HBM_SHARE = 0.95  # of the memory for weights and caches; activations and the runtime take the rest


@dataclass(frozen=True, slots=True)
class ServingParts:
    """Of a generate step: once, for each sequence, and in counts; of one prompt; and the load."""

    weights_s: float  # HBM, once a step
    weight_bits: float
    experts_s: float  # HBM, once a step if every expert is read
    expert_bits: float
    expert_share: float  # a token's chance to visit one
    kv_s: float  # HBM, of a sequence
    attention_s: float  # matrix unit, of a sequence
    matmul_s: float  # matrix unit, of a token
    expert_matmul_s: float
    activations_s: float  # HBM, of a token
    network_s: float  # of a token
    kernels: float
    collectives: float
    prompt_matmul_s: float
    prompt_expert_matmul_s: float
    prompt_attention_s: float
    prompt_network_s: float
    prompt_kernels: float
    ranks: float  # ways that sequences are split
    room: float  # sequences whose caches fit
    batch: float
    output: float
    drafted: float
    is_eager: float
    is_disaggregated: float
    layers: float


def parts_of(question: ServingQuestion) -> ServingParts:
    """The parts of a row."""
    model = replayed_model(
        question.model,
        question.chip,
        tp=question.tp,
        dp_attention=question.dp,
        ep=question.ep,
        precision=question.precision,
        kv=question.kv,
    )
    context = question.prompt + question.output / 2
    step = generate_sums(model, context)
    new = max(1, round(question.prompt * (1 - question.cached)))
    prompt = prompt_sums(model, question.prompt, cached=question.prompt - new)
    weights, experts = (
        question.precision.of_part("attention"),
        question.precision.of_part("experts"),
    )
    return ServingParts(
        weights_s=step.weights_s,
        weight_bits=weights.bits,
        experts_s=step.experts_s,
        expert_bits=experts.bits,
        expert_share=step.expert_share,
        kv_s=step.kv_s,
        attention_s=step.attention_s,
        matmul_s=step.matmul_s,
        expert_matmul_s=step.expert_matmul_s,
        activations_s=step.activations_s,
        network_s=step.network_s,
        kernels=step.kernels + question.kernels,
        collectives=step.collectives,
        prompt_matmul_s=prompt.matmul_s,
        prompt_expert_matmul_s=prompt.expert_matmul_s,
        prompt_attention_s=prompt.attention_s,
        prompt_network_s=prompt.network_s,
        prompt_kernels=prompt.kernels + question.kernels,
        ranks=question.dp,
        room=_room(question, model, step),
        batch=question.batch,
        output=question.output,
        drafted=question.drafted,
        is_eager=float(question.eager),
        is_disaggregated=float(question.row.is_disaggregated),
        layers=question.model.num_layers,
    )


def _room(question: ServingQuestion, model: StepModel, step: StepSums) -> float:
    """Sequences whose caches fit beside the weights, by what the step model reads of each."""
    chip = model.mesh.slice.chip
    if not chip.hbm_bytes or not chip.hbm_bytes_per_s:
        return question.batch
    left = _HBM_SHARE * chip.hbm_bytes - (step.weights_s + step.experts_s) * chip.hbm_bytes_per_s
    # TensorRT-LLM admits what fits when all outputs are as long as they may be.
    whole = question.prompt + question.output * (1.0 if question.row.engine == "trtllm" else 0.5)
    read = step.kv_s * chip.hbm_bytes_per_s * whole / (question.prompt + question.output / 2)
    return max(1.0, left / read)
