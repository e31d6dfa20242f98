"""HTML of the explorer: the frame with its form, and an answer as the part that is swapped.

The server renders both, so the first view needs no script; with one, only the answer is asked for
again. No style and no script stands in the markup, because the policy of the page forbids them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from urllib.parse import urlencode

from rooflight.errors import RooflightError
from rooflight.ui.answer import Answer, Film, Picture, Table, ViewLink
from rooflight.ui.browser.view import Field, View
from rooflight.ui.html.answer import facts_markup, table_grid
from rooflight.ui.html.page import HEAD, folded, scrolling
from rooflight.units import parse_count

_FACTS = 4  # above the main picture; the others are behind it
_FIELDS = 6  # of a form that are seen at once
_DRAWN = ("roofline", "shard", "collectives", "chip", "train", "serve")  # with a picture
_STORIES = (
    (
        "Llama 3 70B on a full pod",
        "8,960 chips of TPU v5p: the layout, its memory, and what binds it.",
        "train?model=llama3-70b&on=v5p%3A16x20x28&batch=18Mi&seq=8192",
    ),
    (
        "What does an H100 buy?",
        "Latency and throughput of Llama 3 8B in fp8 on one GPU, by batch.",
        "serve?model=llama3-8b&on=h100%3A1&dtypes=fp8",
    ),
    (
        "Why all-to-all is a quarter of an all-gather",
        "The same bytes around a ring, hop by hop: each block goes only as far as it must.",
        "collectives?kind=all-to-all&on=v5e%3A16x1",
    ),
)


def document(title: str, body: Sequence[str]) -> str:
    """The whole page."""
    return "\n".join(
        [
            *HEAD,
            f"<title>{escape(title)} - rooflight</title>",
            '<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">',
            '<link rel="stylesheet" href="/assets/explore.css">',
            '<script type="module" src="/assets/explore.js"></script>',
            "</head>",
            "<body>",
            '<a class="skip" href="#answer">Skip to the answer</a>',
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def header(views: Sequence[View], current: str) -> str:
    """The name of the house and its rooms."""
    links = "".join(
        f'<li><a href="/{v.name}"{_current(v.name == current)}>{escape(v.title)}</a></li>'
        for v in views
    )
    return (
        '<header class="top"><a class="home" href="/">rooflight</a>'
        f'<nav aria-label="Views"><ul>{links}</ul></nav></header>'
    )


def _current(is_current: bool) -> str:
    return ' aria-current="page"' if is_current else ""


def _card(title: str, about: str, address: str) -> str:
    name, _, asked = address.partition("?")
    source = escape(f"/api/{name}.svg?{asked}")
    drawn = f'<img class="thumb" loading="lazy" alt="" src="{source}">' if name in _DRAWN else ""
    link = f'<a href="/{escape(address)}">{drawn}<strong>{escape(title)}</strong></a>'
    return f"<li>{link}<span>{escape(about)}</span></li>"


def home_page(views: Sequence[View]) -> str:
    """Stories and the list of views, each with its first picture."""
    told = [_card(title, about, address) for title, about, address in _STORIES]
    cards = [_card(v.title, v.about, v.name) for v in views]
    main = [
        '<main id="answer" class="home-list">',
        "<h1>Ask, and look</h1>",
        "<p>Every number is one that the command line prints. A question is a URL: share it.</p>",
        f'<ul class="cards">{"".join([*told, *cards])}</ul>',
        "</main>",
    ]
    return document("Explore", [header(views, ""), *main])


def view_page(
    views: Sequence[View], view: View, values: Mapping[str, str], parts: Mapping[str, str]
) -> str:
    """A view with its form and the parts of its answer, as markup; an absent part is asked for."""
    slots = ["answer", *(["more"] if view.more else [])]
    main = [
        f'<main data-view="{view.name}">',
        f'<div class="head"><h1>{escape(view.title)}</h1><p>{escape(view.about)}</p>'
        '<a class="ask" href="#question">Change the question</a></div>',
        '<div class="columns">',
        form(view, values),
        '<div class="answers">',
        '<p id="status" class="status" role="status" aria-live="polite"></p>',
        *(_slot(view, slot, parts.get(slot), values) for slot in slots),
        "</div>",
        "</div>",
        _keys(),
        "</main>",
    ]
    return document(view.title, [header(views, view.name), *main])


def _slot(view: View, slot: str, markup: str | None, values: Mapping[str, str]) -> str:
    """Where a part of the answer goes."""
    state = "fresh" if markup is not None else "asked"
    whole = escape(f"/{view.name}?{urlencode({**values, 'whole': 'yes'})}")
    waiting = (
        '<p class="loading">Working it out ...</p>'
        f'<noscript><p><a href="{whole}">Without scripts: the rest of the answer</a></p></noscript>'
    )
    content = waiting if markup is None else markup
    return f'<div id="{slot}" class="part" data-state="{state}">{content}</div>'


def _keys() -> str:
    """What the keyboard does; `?` shows it."""
    keys = (
        ("?", "this list"),
        ("/", "to the first field"),
        ("arrow keys", "move a slider, or a film that has the focus, by one stop"),
        ("space", "play or pause the film"),
        ("Esc", "close this list"),
    )
    rows = "".join(f"<dt><kbd>{k}</kbd></dt><dd>{w}</dd>" for k, w in keys)
    return (
        '<dialog id="keys" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>'
        f'<dl>{rows}</dl><form method="dialog"><button>Close</button></form></dialog>'
    )


def answer_markup(view: View, answer: Answer, query: str, *, part: str = "answer") -> str:
    """One part of an answer: the headline, facts, the main picture; then what it rests on.

    With a picture, tables and notes are behind their captions, unless a table is said to be first.
    """
    shown = [
        *(_film(view, film, query, part) for film in answer.films),
        *(_picture(view, picture, query, part) for picture in answer.pictures),
    ]
    said = [f'<p class="note">{escape(words)}</p>' for words in answer.sentences[1:]]
    behind = facts_markup(answer.facts[_FACTS:])
    behind += [f'<p class="note">{escape(words)}</p>' for words in answer.notes if words]
    first = [_table(view, t, query, part) for t in answer.tables if t.is_first]
    rest = [
        _table(view, replace(t, is_folded=t.is_folded or bool(shown)), query, part)
        for t in answer.tables
        if not t.is_first
    ]
    return "\n".join(
        [
            *(f'<p class="answer">{escape(words)}</p>' for words in answer.sentences[:1]),
            *facts_markup(answer.facts[:_FACTS]),
            *([] if shown else said),
            *first,
            *shown[:1],
            *(said if shown else []),
            *([folded("Why, and what it rests on", "".join(behind))] if behind else []),
            *shown[1:],
            *rest,
            *_links(answer.links),
            *_exports(view, answer, query, part),
        ]
    )


def error_markup(error: RooflightError) -> str:
    """What is wrong with the question and what would work."""
    hint = f'<p class="hint">{escape(error.hint)}</p>' if error.hint else ""
    return f'<div class="error" role="alert"><p>{escape(str(error))}</p>{hint}</div>'


def _picture(view: View, picture: Picture, query: str, part: str) -> str:
    svg = picture.svg.replace("</title>", f"</title>\n<desc>{escape(picture.caption)}</desc>", 1)
    wide = f' data-least="{picture.least}"' if picture.least else ""
    size = re.search(r'width="([0-9.]+)" height="([0-9.]+)"', svg)
    wide += " data-tall" if size and float(size[2]) > 0.9 * float(size[1]) else ""
    return (
        f'<figure data-picture="{picture.key}"{wide}>{scrolling(picture.caption, svg)}'
        f"<figcaption>{escape(picture.caption)}</figcaption>"
        f"{_saves(view, picture.key, query, part)}</figure>"
    )


def _saves(view: View, key: str, query: str, part: str) -> str:
    source = f"{_api(view, part)}.svg?picture={key}&{query}"
    return (
        f'<div class="saves"><a download="{view.name}-{key}.svg" href="{escape(source)}">SVG</a>'
        f'<button type="button" data-png="{view.name}-{key}.png">PNG</button></div>'
    )


def _film(view: View, film: Film, query: str, part: str) -> str:
    """All stills, one to be seen; the script turns the pages."""
    last = len(film.frames) - 1
    stills = "".join(
        f'<div class="still" data-words="{escape(frame.words)}"{"" if i == 0 else " hidden"}>'
        f"{frame.svg}</div>"
        for i, frame in enumerate(film.frames)
    )
    controls = (
        '<button type="button" data-film="play">Play</button>'
        '<button type="button" data-film="back" aria-label="One step back">&lt;</button>'
        '<button type="button" data-film="on" aria-label="One step on">&gt;</button>'
        f'<input type="range" min="0" max="{last}" value="0" step="1"'
        f' aria-label="Step of {escape(film.title)}">'
        f"<output>1 of {last + 1}</output>"
    )
    return (
        f'<figure class="film" data-film="{film.key}" data-seconds="{film.seconds:g}">'
        f"<h2>{escape(film.title)}</h2>"
        f"{scrolling(film.title, f'<div>{stills}</div>')}"
        f'<p class="words" aria-live="polite">{escape(film.frames[0].words)}</p>'
        f'<div class="controls">{controls}</div>'
        f"<figcaption>{escape(film.caption)}</figcaption>"
        f"{_saves(view, f'{film.key}.1', query, part)}</figure>"
    )


def _table(view: View, table: Table, query: str, part: str) -> str:
    source = escape(f"{_api(view, part)}.csv?table={table.key}&{query}")
    save = f'<a download="{view.name}-{table.key}.csv" href="{source}">CSV</a>'
    body = f'{table_grid(table)}<div class="saves">{save}</div>'
    return folded(table.title, body) if table.is_folded else f'<div class="table">{body}</div>'


def _links(links: Sequence[ViewLink]) -> list[str]:
    if not links:
        return []
    items = "".join(f'<li><a href="{escape(x.url)}">{escape(x.words)}</a></li>' for x in links)
    return [f'<ul class="links">{items}</ul>']


def _exports(view: View, answer: Answer, query: str, part: str) -> list[str]:
    """All of it as JSON, and the command that prints the same."""
    save = f'<a download="{view.name}.json" href="{escape(f"{_api(view, part)}?{query}")}">JSON</a>'
    command = (
        f'<div class="command"><code>{escape(answer.command)}</code>'
        '<button type="button" data-copy>Copy</button></div>'
        if answer.command
        else ""
    )
    return [f'<div class="exports"><div class="saves">{save}</div>{command}</div>']


def _api(view: View, part: str) -> str:
    return f"/api/{view.name}" + ("" if part == "answer" else f"/{part}")


# The form of a view: one labelled control a field, with a slider where a field has stops.


def form(view: View, values: Mapping[str, str]) -> str:
    """The question as it stands; it is sent as a plain form where there is no script."""
    given = {f.name: values.get(f.name, f.default) for f in view.fields}
    counting = [i for i, f in enumerate(view.fields) if not f.when or given[f.when[0]] in f.when]
    cut = counting[_FIELDS] if len(counting) > _FIELDS else len(view.fields)
    controls = [_control(f, given[f.name]) for f in view.fields]
    first, rest = "".join(controls[:cut]), "".join(controls[cut:])
    is_open = any(given[f.name] != f.default for f in view.fields[cut:])
    if rest:
        opened = " open" if is_open else ""
        rest = folded("More settings", rest).replace("<details", f"<details{opened}", 1)
    return (
        f'<form id="question" class="question" method="get" action="/{view.name}"'
        ' aria-label="The question">'
        f'{first}{rest}<div class="send"><button type="submit">Ask</button>'
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
