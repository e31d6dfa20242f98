"""The views in the order of the menu."""

from rooflight.ui.browser import (
    book,
    chip,
    collectives,
    roofline,
    run,
    serve,
    shard,
    train,
    verdict,
)
from rooflight.ui.browser.view import View

VIEWS: tuple[View, ...] = (
    roofline.VIEW,
    shard.VIEW,
    collectives.VIEW,
    chip.VIEW,
    train.VIEW,
    serve.VIEW,
    verdict.VIEW,
    run.VIEW,
    book.VIEW,
)
