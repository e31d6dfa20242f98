#!/bin/bash
# Experts on the data ranks of a node, tensor ranks too few to leave one.
GPUS_PER_NODE=8
NUM_NODES=8
EP=4

ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope --max-position-embeddings 32768
    --seq-length 4096 --vocab-size 32000
    --num-experts 8 --moe-router-topk 2
    --moe-token-dispatcher-type alltoall --moe-grouped-gemm
    --tensor-model-parallel-size 2 --sequence-parallel
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size $EP
    --micro-batch-size 1 --global-batch-size 256
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --use-distributed-optimizer
)
[ "$EP" -gt 1 ] && ARGS+=(--moe-aux-loss-coeff 1e-2)
case "$1" in
    short) ARGS+=(--train-iters 10) ;;
    *) ARGS+=(--train-iters 1000) ;;
esac

python3 -m torch.distributed.run --nproc-per-node=$GPUS_PER_NODE --nnodes=$NUM_NODES \
    pretrain_gpt.py "${ARGS[@]}" --bf16 "$@"
