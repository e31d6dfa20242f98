"""The pipeline of a candidate on a clock: its schedule in lock step, with the seconds of a stage.

In: a `Question` and a candidate. Out: a `PipelineRun`, or None where there are no stages.
"""

from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.options import can_run
from rooflight.plan.training.time.pipeline import PipelineRun, SlotTimes, run_in_step
from rooflight.plan.training.time.stages import schedule_table
from rooflight.plan.training.time.step_time import stage_time


def run_pipeline(
    question: Question, candidate: Candidate, *, most_microbatches: int | None = None
) -> PipelineRun | None:
    """Simulates a step, or one with fewer microbatches of the same size.

    A shorter step fills and drains as the whole one does: its bubble has the same seconds.
    Transfers between stages are in the slots, where they overlap matmuls.
    """
    if candidate.num_stages == 1:
        return None
    q, c = question, candidate
    time = stage_time(q.graph, c.layout, c.mesh, q.batch, q.seq, q.dtype, c.micro, c.remat)
    forward, backward, weight = (time.slot_s(slot, q.overlap) for slot in "FBW")
    count = _count(question, candidate, most_microbatches or c.micro.count)
    schedule = schedule_table(
        c.micro.schedule, stages=c.num_stages, microbatches=count, virtual=c.micro.virtual
    )
    return run_in_step(schedule, SlotTimes(forward, backward, weight))


def _count(question: Question, candidate: Candidate, most: int) -> int:
    """The most microbatches within a limit that the schedule has a table for, else all."""
    micro, stages, layers = candidate.micro, candidate.num_stages, len(question.graph.order)
    for count in range(min(most, micro.count), 0, -1):
        if can_run(micro, stages, count, layers, question.framework):
            return count
    return micro.count
