"""The views in the order of the menu."""

from rooflight.ui.browser import (
    book,
    chip,
    collectives,
    roofline,
    run,
    serve_fleet,
    shard,
    train_more,
    verdict,
)
from rooflight.ui.browser.view import View

VIEWS: tuple[View, ...] = (
    roofline.VIEW,
    shard.VIEW,
    collectives.VIEW,
    chip.VIEW,
    train_more.VIEW,
    serve_fleet.VIEW,
    verdict.VIEW,
    run.VIEW,
    book.VIEW,
)
