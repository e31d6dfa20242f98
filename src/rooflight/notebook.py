"""`%load_ext rooflight.notebook`: the extension of `ui.notebook` under its public name."""

from rooflight.ui.notebook.extension import (
    RENDERERS,
    load_ipython_extension,
    unload_ipython_extension,
)

__all__ = ["RENDERERS", "load_ipython_extension", "unload_ipython_extension"]
