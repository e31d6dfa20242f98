"""Attention kernels: chunked, tiled, splash, ring, Ulysses."""
