"""How tables look on a console."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text


def plain_table(title: str, caption: str = "") -> Table:
    """A table without frame: title left and bold, caption dim."""
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        caption=Text(caption, style="dim") if caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
    )
