"""How Sphinx builds the handbook: `python -m sphinx -W docs build`. Nothing comes from afar."""

import sys
from pathlib import Path

from rooflight import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "Rooflight"
author = "the Rooflight authors"
project_copyright = author
release = version = __version__
html_title = f"Rooflight {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "handbook"]
exclude_patterns = ["handbook", "build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https"]

autodoc_typehints = "none"  # the signature has them already
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True}
default_role = "literal"
smartquotes = False
toc_object_entries = False  # five hundred names in the menu of every page

html_theme = "furo"
html_static_path = ["handbook/static"]
html_css_files = ["handbook.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # else results are fetched, which a browser denies to files
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0067a3", "color-brand-content": "#0067a3"},
    "dark_css_variables": {"color-brand-primary": "#6cbcf3", "color-brand-content": "#6cbcf3"},
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark"
