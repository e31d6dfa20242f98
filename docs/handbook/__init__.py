"""What Sphinx learns for the handbook: pictures and tables that are made at build time.

In: directives in the pages. Out: nodes made by the library itself, so no number is typed.
"""

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from handbook.catalog import Calibrations, PlanFields
from handbook.drawn import Drawn, Live
from handbook.errata import Errata
from handbook.full_sizes import FullSizes
from handbook.guides import Steps
from handbook.reach import reachable
from handbook.record import Record
from handbook.style import FILE, write_style
from handbook.verbs import Verbs


def setup(app: Sphinx) -> ExtensionMetadata:
    """Sphinx calls this once."""
    app.add_directive("drawn", Drawn)
    app.add_directive("live", Live)
    app.add_directive("errata", Errata)
    app.add_directive("full-sizes", FullSizes)
    app.add_directive("record", Record)
    app.add_directive("steps", Steps)
    app.add_directive("verbs", Verbs)
    app.add_directive("plan-fields", PlanFields)
    app.add_directive("calibrations", Calibrations)
    app.connect("builder-inited", write_style)
    app.connect("html-page-context", reachable, priority=900)  # after the theme's own
    app.add_css_file(FILE)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
