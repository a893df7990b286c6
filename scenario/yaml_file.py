"""Reads a YAML file that a person wrote: a mapping of a sane size. Whatever is wrong with it is one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scenario.errors import InputError
from scenario.text_file import read_text

#: More than any scenario or price book could need.
MAX_BYTES = 1_000_000


class _PlainLoader(yaml.SafeLoader):
    """No aliases (a few lines of them can stand for gigabytes), and no key given twice: which was meant is unknown."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_mapping(path: Path, field: str, what: str, hint: str) -> dict[Any, Any]:
    """The mapping in a file; empty for an empty file. `field` names it in errors, `what` says what it should be
    ("scenario"), `hint` where to find an example. Raises InputError."""
    text = read_text(path, field, f"a {what}", hint, MAX_BYTES)
    return parse_mapping(text, str(path), field, hint)


def parse_mapping(text: str, name: str, field: str, hint: str) -> dict[Any, Any]:
    """The mapping in a text that is called `name` in errors. Raises InputError."""
    try:
        data = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError(field, name, f"is not YAML{where}: {getattr(error, 'problem', error)}") from None
    except RecursionError:
        raise InputError(field, name, "is nested too deeply") from None
    except ValueError as error:  # a number or a date that Python cannot hold
        raise InputError(field, name, f"holds a value that cannot be read: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(field, name, "must be a mapping of sections", hint)
    return data
