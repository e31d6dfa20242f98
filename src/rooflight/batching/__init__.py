"""What runs next on a replica: a scheduler, a pool of KV blocks and a prefix cache.

Requests in, step batches out; pure counting, with no clock and no device, so that a simulator and
an engine can drive the very same object.
"""

from rooflight.batching.host_tier import HostTier, Move
from rooflight.batching.pool import BlockPool
from rooflight.batching.prefix import KeyChain
from rooflight.batching.request import Admission, Key, Limits, Policy, Request
from rooflight.batching.room import Room
from rooflight.batching.scheduler import Scheduler
from rooflight.batching.separated import Hold, SeparatedScheduler
from rooflight.batching.step_batch import Chunk, StepBatch, StepOutcome, TableWrite

__all__ = [
    "Admission",
    "BlockPool",
    "Chunk",
    "Hold",
    "HostTier",
    "Key",
    "KeyChain",
    "Limits",
    "Move",
    "Policy",
    "Request",
    "Room",
    "Scheduler",
    "SeparatedScheduler",
    "StepBatch",
    "StepOutcome",
    "TableWrite",
]
