"""Prefix hits under a cache that is shared by all and never evicts: the most that any cache can find."""

from __future__ import annotations

from traffic.readers.rows import TraceRow


class InfiniteCache:
    """Blocks seen so far. Memory grows with the number of different blocks, not with that of rows."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def hit_tokens(self, row: TraceRow) -> int:
        """Tokens of the row's prompt whose blocks were all seen from the start on; the row is then seen itself.

        At least one token is computed, since the next one is sampled from it.
        """
        if row.blocks is None:
            return 0
        seen, hits = self._seen, 0
        for block in row.blocks:
            if block not in seen:
                break
            hits += 1
        seen.update(row.blocks[hits:])
        return min(hits * row.block_tokens, row.input_tokens - 1)
