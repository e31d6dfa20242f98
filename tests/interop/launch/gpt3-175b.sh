#!/bin/bash
# Dense, learned positions, biases, fp16: tensor ranks in a node, stages across nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-128}
WORLD_SIZE=$((GPUS_PER_NODE * NNODES))
TP=8
PP=16

LAUNCH="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --rdzv_id $SLURM_JOB_ID"

OPTIONS=" \
    --num-layers 96 \
    --hidden-size 12288 \
    --num-attention-heads 96 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --tokenizer-type GPT2BPETokenizer \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage 3 \
    --sequence-parallel \
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --recompute-activations \
    --use-distributed-optimizer \
    --fp16 \
    --lr 6e-5 \
    --data-path $1"

$LAUNCH pretrain_gpt.py $OPTIONS --exit-interval 100 2>&1 | tee "log.$(date +%s)"
