"""A question's parts: what one generated token and one prompt cost each part of the hardware.

In: a `ServingQuestion`. Out: a `ServingTable` of one row: seconds at the rates of the catalog, and
counts. They are sums over the terms of the step model; nothing is worked out anew. Everything but
the experts that are read is linear in the sequences of a step.
"""

import numpy as np

from rooflight.measure.published.serving_loop import Loads, ServingTable
from rooflight.measure.published.serving_question import ServingQuestion
from rooflight.plan.serving.simulate.replay import replayed_model
from rooflight.plan.serving.step.calibrated import GenerateParts, generate_parts, prompt_parts
from rooflight.plan.serving.step.model import StepModel

_HBM_SHARE = 0.95  # of the memory for weights and caches; activations and the runtime take the rest


def parts_of(question: ServingQuestion) -> ServingTable:
    """Derives the row's step model and adds its terms up."""
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
    step = generate_parts(model, context, drafted=question.drafted)
    new = max(1, round(question.prompt * (1 - question.cached)))
    prompt = prompt_parts(model, question.prompt, cached=question.prompt - new)
    load = (
        _room(question, model, step),
        question.batch,
        question.output,
        question.row.is_disaggregated,
    )
    return ServingTable(
        step._replace(
            kernels=step.kernels + question.kernels, is_eager=np.array([float(question.eager)])
        ),
        prompt._replace(kernels=prompt.kernels + question.kernels),
        Loads(*(np.array([float(value)]) for value in load)),
        np.array([question.row.ttft_s]),
    )


def _room(question: ServingQuestion, model: StepModel, step: GenerateParts) -> float:
    """Sequences whose caches fit beside the weights, by what the step model reads of each."""
    chip = model.mesh.slice.chip
    if not chip.hbm_bytes or not chip.hbm_bytes_per_s:
        return question.batch
    weights_s = float(step.weights_s[0] + step.experts_s[0])
    left = _HBM_SHARE * chip.hbm_bytes - weights_s * chip.hbm_bytes_per_s
    # TensorRT-LLM admits what fits when all outputs are as long as they may be.
    whole = question.prompt + question.output * (1.0 if question.row.engine == "trtllm" else 0.5)
    read = float(step.kv_s[0]) * chip.hbm_bytes_per_s
    read *= whole / (question.prompt + question.output / 2)
    return max(1.0, left / read)
