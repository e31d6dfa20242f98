"""Memory of large bodies goes back to the system when they are done.

glibc takes a block of 128 KiB or more from the system and gives it back when it is freed; but each
time it raises the size from which it does so, up to 32 MiB, and smaller ones stay with the process
in pieces. A process that lives for months and is sent megabytes by strangers keeps that size.
"""

import ctypes
import sys

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of mallopt(3); setting it also ends the raising
_FROM_BYTES = 128 << 10


def return_large_blocks() -> bool:
    """Keeps the size as it is; False where the system's allocator is another."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, _FROM_BYTES))
