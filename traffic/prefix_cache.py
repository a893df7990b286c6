"""The prefix cache of one instance: which prompts' beginnings it still holds, least recently used out first.

A session's prompt begins with what the session sent and received before; a trace may instead name the blocks of each
prompt (equal ids: equal prefix). Both are kept by what identifies them: (session) -> tokens, or block -> its tokens.
"""

from __future__ import annotations

from collections import OrderedDict

from traffic.requests import Request


class PrefixCache:
    """`capacity_tokens` bounds what is held. Nothing here knows time: order of use is all."""

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.tokens = 0
        self._held: OrderedDict[tuple[str, int], int] = OrderedDict()

    def match(self, request: Request) -> int:
        """Tokens of the prompt that need not be computed: at least one token always is. Does not count as a use."""
        if request.prefix_blocks:
            held = 0
            for block in request.prefix_blocks:
                if ("block", block) not in self._held:
                    break
                held += request.block_tokens
        else:
            # What the workload says could be reused at best bounds it: a session may have edited its context.
            held = min(self._held.get(("session", request.session_id), 0), request.cached_tokens)
        return min(held, request.input_tokens - 1)

    def insert(self, request: Request, tokens: int) -> None:
        """The instance now holds the first `tokens` of this request's prompt (and, for sessions, its answer)."""
        if request.prefix_blocks:
            # From the end: what is used last leaves last, and a prefix is of use only from its start.
            for block in reversed(request.prefix_blocks):
                self._put(("block", block), request.block_tokens)
        else:
            self._put(("session", request.session_id), tokens)

    def _put(self, key: tuple[str, int], tokens: int) -> None:
        self.tokens += tokens - self._held.pop(key, 0)
        self._held[key] = tokens
        while self.tokens > self.capacity_tokens and self._held:
            _, freed = self._held.popitem(last=False)
            self.tokens -= freed
