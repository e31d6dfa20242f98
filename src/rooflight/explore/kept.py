"""Answers that were given lately: an export or a step back asks nothing again."""

from collections import OrderedDict
from threading import Lock

from rooflight.explore.answer import Answer
from rooflight.explore.view import Question, View

_MOST = 64


class Kept:
    """A bounded memory of answers; one question of a view is worked out at a time.

    Python runs one thread at a time anyway, so two answers at once would only both be late. What
    takes long (`more`) has a turnstile of its own and does not hold up an answer.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[object, Answer] = OrderedDict()
        self._turns: dict[tuple[str, str], Lock] = {}
        self._changing = Lock()

    def answer(self, view: View, question: Question, part: str) -> Answer:
        ask = view.more if part == "more" and view.more else view.answer
        if not view.is_pure:
            return ask(question)
        key = view.name, part, question.values
        with self._turns.setdefault((view.name, part), Lock()):
            found = self._answers.get(key) or ask(question)
        with self._changing:
            self._answers[key] = found
            self._answers.move_to_end(key)
            if len(self._answers) > _MOST:
                self._answers.popitem(last=False)
        return found
