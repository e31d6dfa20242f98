#!/bin/bash
# Latent attention, three dense layers, 256 experts on 64 ranks of eight nodes, uneven stages.
TP=1; PP=16; EP=64
DENSE=3
LAYERS=61
ROUTED=$((LAYERS - DENSE))

ARGS=(
    --num-layers $LAYERS --hidden-size 7168 --ffn-hidden-size 18432
    --num-attention-heads 128 --multi-latent-attention --qk-layernorm
    --q-lora-rank 1536 --kv-lora-rank 512
    --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope --max-position-embeddings 163840
    --seq-length 4096
    --tokenizer-type HuggingFaceTokenizer
    --make-vocab-size-divisible-by 3232
    --num-experts 256 --moe-router-topk 8
    --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048
    --moe-layer-freq "([0]*${DENSE}+[1]*${ROUTED})"
    --moe-router-score-function sigmoid
    --moe-token-dispatcher-type flex
    --mtp-num-layers 1
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
    --expert-model-parallel-size $EP --expert-tensor-parallel-size 1
    --decoder-last-pipeline-num-layers 1
    --micro-batch-size 1 --global-batch-size 8192
    --recompute-granularity selective --recompute-modules core_attn layernorm
    --use-distributed-optimizer
    --bf16 --fp8-format e4m3 --fp8-recipe blockwise
    --wandb-exp-name "dsv3-$(git rev-parse --short HEAD)"
)
CMD="python pretrain_gpt.py ${ARGS[@]}"

sbatch --nodes=128 <<SLURM
#!/bin/bash
srun bash -c "$CMD"
SLURM
