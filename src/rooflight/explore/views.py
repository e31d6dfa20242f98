"""The views in the order of the menu."""

from rooflight.explore import (
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
from rooflight.explore.view import View

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
