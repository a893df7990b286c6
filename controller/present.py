"""Which of our rules and groups a switch is known to have: what was there, and what it has confirmed since. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.audit import Difference, RuleKey
from controller.repair import Change
from controller.ruleset import Rule, SelectGroup


@dataclass
class Present:
    """Of one switch. `rules` by priority and match, `groups` by number."""

    rules: set[RuleKey] = field(default_factory=set)
    groups: set[int] = field(default_factory=set)

    def audited(self, rules: Iterable[Rule], groups: Iterable[SelectGroup], found: Difference) -> None:
        """The switch has said what it has: of what is wanted, what need not be sent."""
        self.rules = {_key(rule) for rule in rules} - {_key(rule) for rule in found.add_rules}
        self.groups = {group.group_id for group in groups} - {group.group_id for group in found.add_groups}

    def confirmed(self, sent: Mapping[int, object], refused: Iterable[int] = ()) -> None:
        """The switch has answered the barrier behind these messages (by xid), and refused some of them before."""
        left = set(refused)
        for xid, what in sent.items():
            if xid not in left:
                self._take(what)

    def _take(self, what: object) -> None:
        match what:
            case Rule():
                self.rules.add(_key(what))
            case SelectGroup():
                self.groups.add(what.group_id)
            case Change(what="add" | "add group", item=item):
                self._take(item)
            case Change(what="delete", item=Rule() as rule):
                self.rules.discard(_key(rule))
            case Change(what="delete group", item=SelectGroup() as group):
                self.groups.discard(group.group_id)


def _key(rule: Rule) -> RuleKey:
    return rule.priority, rule.match
