"""Weights in and out: safetensors and Hugging Face names."""
