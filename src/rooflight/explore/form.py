"""The form of a view: one labelled control a field, with a slider where a field has stops."""

from collections.abc import Mapping
from html import escape

from rooflight.errors import RooflightError
from rooflight.explore.view import Field, View
from rooflight.units import parse_count


def form(view: View, values: Mapping[str, str]) -> str:
    """The question as it stands; it is sent as a plain form where there is no script."""
    controls = "".join(
        _control(field, values.get(field.name, field.default)) for field in view.fields
    )
    return (
        f'<form class="question" method="get" action="/{view.name}" aria-label="The question">'
        f'{controls}<div class="send"><button type="submit">Ask</button>'
        f'<a href="/{view.name}">Start over</a>'
        '<button type="button" data-keys aria-label="Keys of this page">?</button></div></form>'
    )


def _control(field: Field, value: str) -> str:
    head = f'<label for="f-{field.name}">{escape(field.label)}</label>'
    if field.kind == "switch":
        return _wrap(field, head + _select(field, value, ("no", "yes")))
    if field.kind == "choice":
        return _wrap(field, head + _select(field, value, field.choices))
    suggest = f' list="l-{field.name}"' if field.choices else ""
    box = (
        f'<input id="f-{field.name}" name="{field.name}" value="{escape(value)}" maxlength="400"'
        f' autocomplete="off" spellcheck="false"{suggest}{_described(field)}>'
    )
    options = "".join(f'<option value="{escape(c)}"></option>' for c in field.choices)
    listed = f'<datalist id="l-{field.name}">{options}</datalist>' if options else ""
    return _wrap(field, head + box + listed + _slider(field, value))


def _wrap(field: Field, markup: str) -> str:
    helped = f'<small id="h-{field.name}">{escape(field.help)}</small>' if field.help else ""
    when = ""
    if field.when:
        name, *values = field.when
        when = f' data-when="f-{name}" data-values="{escape("|".join(values))}"'
    return f'<div class="field"{when}>{markup}{helped}</div>'


def _described(field: Field) -> str:
    return f' aria-describedby="h-{field.name}"' if field.help else ""


def _select(field: Field, value: str, choices: tuple[str, ...]) -> str:
    options = "".join(
        f"<option{' selected' if c == value else ''}>{escape(c)}</option>" for c in choices
    )
    return f'<select id="f-{field.name}" name="{field.name}"{_described(field)}>{options}</select>'


def _slider(field: Field, value: str) -> str:
    """A range over the stops, without a name: it moves the field, which is what is sent."""
    if not field.stops:
        return ""
    at = nearest_stop(field.stops, value)
    stops, label = escape(" ".join(field.stops)), escape(f"{field.label}, slider")
    return (
        f'<input type="range" min="0" max="{len(field.stops) - 1}" step="1" value="{at}"'
        f' data-for="f-{field.name}" data-stops="{stops}" aria-label="{label}"'
        f' aria-valuetext="{escape(field.stops[at])}">'
    )


def nearest_stop(stops: tuple[str, ...], value: str) -> int:
    """The stop nearest to a value by ratio; the first where the value makes no sense.

    >>> nearest_stop(("1Ki", "2Ki", "4Ki"), "2000")
    1
    """
    try:
        asked = max(1, parse_count(value))
    except RooflightError:
        return 0
    sizes = [max(1, parse_count(stop)) for stop in stops]
    return min(range(len(sizes)), key=lambda i: max(sizes[i] / asked, asked / sizes[i]))
