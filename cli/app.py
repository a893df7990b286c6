"""The typer application, and how its errors end: 2 bad input, 3 the machine lacks something, 130 interrupted."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from scenario.errors import TestbedError
from topologies.fabric import FabricError

app = typer.Typer(
    name="zcube",
    help="What does the network fabric do to the time to first token of a prefill/decode LLM service?\n\n"
    "Example: [bold]sudo .venv/bin/zcube compare --out runs/first[/]",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"zcube {metadata.version('zcube-testbed')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it and exit")] = False,
) -> None:
    """What every verb shares."""


# A closed descriptor (`>&-`) leaves no stream at all.
for _name in ("stdout", "stderr"):
    if getattr(sys, _name) is None:
        setattr(sys, _name, open(os.devnull, "w"))  # noqa: SIM115

#: No markup in strings: names of folders and files may hold anything, [/] too. What has a style is a `Text`.
#: Tables are wide; where nobody watches, 80 columns would fold every cell.
out = Console(width=None if sys.stdout.isatty() else 132, markup=False)
#: Messages are not folded at all: a folded path cannot be copied.
err = Console(stderr=True, soft_wrap=True, markup=False)


def print_json(data: object) -> None:
    """JSON on standard output: coloured for a person, plain and fast for a program (a fabric may be 20 MB)."""
    if out.is_terminal:
        out.print_json(data=data)
    else:
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")


def run() -> None:
    """Console entry point: errors that a person can act on are one message, never a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has set a background job to ignore Ctrl-C
        signal.signal(number, _interrupt)
    try:
        app(standalone_mode=True)
    except TestbedError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except FabricError as error:
        _complain(f"fabric.{error}")
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "\n  free some space there, or choose another place" if full else ""
        _complain(f"{error.filename or 'the output'}: {error.strerror or error}{hint}")
        sys.exit(1 if full else 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _complain(text: str) -> None:
    err.print(Text("zcube: ", style="bold red"), end="")
    err.print(text, highlight=False)
