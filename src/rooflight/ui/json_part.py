"""`JsonPart`: an object of a JSON file that others wrote; what is not of its kind counts as absent.

So a file of an older version, or one that is damaged, shows what can be read of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class JsonPart:
    """Its fields, by the kind that a reader expects.

    >>> part = JsonPart({"a": 3, "b": "x", "c": {"d": [1, "y"]}})
    >>> part.number("a"), part.number("b"), part.part("c").words("d")
    (3, None, ['y'])
    """

    fields: Mapping[str, object]

    def text(self, key: str) -> str:
        found = self.fields.get(key)
        return found if isinstance(found, str) else ""

    def number(self, key: str) -> int | float | None:
        found = self.fields.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        return found if math.isfinite(found) else None

    def whole(self, key: str) -> int | None:
        found = self.number(key)
        return None if found is None else int(found)

    def part(self, key: str) -> "JsonPart":
        """An object within; an empty one where there is none."""
        found = self.fields.get(key)
        return JsonPart(cast(Mapping[str, object], found) if isinstance(found, Mapping) else {})

    def parts(self, key: str) -> list["JsonPart"]:
        """The objects of a list."""
        return [
            JsonPart(cast(Mapping[str, object], one))
            for one in self._list(key)
            if isinstance(one, Mapping)
        ]

    def words(self, key: str) -> list[str]:
        """The texts of a list."""
        return [one for one in self._list(key) if isinstance(one, str)]

    def _list(self, key: str) -> list[object]:
        found = self.fields.get(key)
        return list(cast(list[object], found)) if isinstance(found, list | tuple) else []
