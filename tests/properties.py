"""How many examples of a costly property are tried."""

from __future__ import annotations

from hypothesis import settings


def examples(deep: int) -> settings:
    """So many with `--deep`, otherwise a quarter of them, and 10 at least."""
    count = deep if settings.get_current_profile_name() == "deep" else max(10, deep // 4)
    return settings(max_examples=min(count, deep), deadline=None)
