#!/bin/bash
#SBATCH --nodes=256
#SBATCH --gpus-per-node=8

# Grouped queries and SwiGLU; 126 layers and two ends on 16 stages of 8, interleaved, with context ranks.
set -euo pipefail
CP=${CP:-2}
FP8=${FP8:-0}

MODEL_ARGS=(
    --num-layers 126
    --hidden-size 16384
    --ffn-hidden-size 53248
    --num-attention-heads 128
    --group-query-attention --num-query-groups 8
    --kv-channels 128
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope --rotary-base 500000
    --max-position-embeddings 131072
    --vocab-size 128256 --make-vocab-size-divisible-by 16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 8 --sequence-parallel   # inside a node
    --pipeline-model-parallel-size 16
    --num-virtual-stages-per-pipeline-rank 4
    --account-for-embedding-in-pipeline-split
    --account-for-loss-in-pipeline-split
    --context-parallel-size $CP --cp-comm-type all_gather
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --tp-comm-overlap
)
TRAIN_ARGS=(--seq-length 8192 --micro-batch-size 1 --global-batch-size 2048 --bf16)

if [[ "$FP8" == "1" ]]; then
    TRAIN_ARGS+=("--fp8-format hybrid" "--fp8-recipe tensorwise")
fi
if [ ! -d "${OUT:-}" ]; then
    echo "no folder for checkpoints" && exit 1
fi

srun --mpi=pmix bash -c "python -u pretrain_gpt.py ${MODEL_ARGS[*]} ${PARALLEL_ARGS[*]} ${TRAIN_ARGS[*]}"
