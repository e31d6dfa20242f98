"""`Sequence`: a request on its way through the scheduler, with all that changes."""

from rooflight.batching.request import Key, Request


class Sequence:
    """One request: what it still needs, and the row and blocks it holds."""

    __slots__ = (
        "blocks",
        "computed",
        "due",
        "end",
        "has_kv",
        "id",
        "is_live",
        "keys",
        "left",
        "named",
        "origin",
        "prompt",
        "rank",
        "row",
    )

    def __init__(self, request: Request, number: int, *, has_kv: bool) -> None:
        self.id = request.id
        self.rank = (request.priority, number)
        self.prompt = request.prompt_tokens  # tokens to compute; grows by what a preemption loses
        self.left = request.max_new_tokens  # tokens to make, counted from the end of the prompt
        self.keys: list[Key] = list(request.keys) if request.keys else []
        self.has_kv = has_kv  # the prompt was computed elsewhere, its first token is made
        self.is_live = True  # false once cancelled or done
        self.blocks: list[int] = []
        self.named = 0  # leading blocks that were looked up or offered under their keys
        self.computed = 0  # prompt tokens in the cache
        self.row = -1
        # While it decodes, on the clock of decode steps:
        self.origin = 0  # cached tokens minus clock
        self.due = 0  # when it needs another block
        self.end = 0  # when it is done
