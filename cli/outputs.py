"""Files and folders that a verb writes: never over something by accident, and whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scenario.errors import InputError


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write `text`. Raises InputError for a place that cannot hold it, or that holds something without `force`."""
    _check_parent(path)
    if path.is_dir():
        raise InputError("--out", str(path), "is a folder; give the name of a file")
    if path.exists() and not path.is_file():  # a pipe or a device: nothing there to replace
        path.write_text(text)
        return
    if path.exists() and not force:
        raise InputError("--out", str(path), "exists; choose another name, or add --force to replace it")
    _replace(path, text)


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write files by relative name into a new or empty folder, with `force` over those of the same names."""
    _check_parent(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError("--out", str(folder), "is a file; this format needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InputError("--out", str(folder), "is not empty; choose a new folder, or add --force to replace its files")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _replace(folder / name, text)


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InputError("--out", str(path), f"the folder {parent} does not exist", f"make it: mkdir -p '{parent}'")


def _replace(path: Path, text: str) -> None:
    """Through a temporary file beside it, so that a full disk or Ctrl-C leaves the old file or none."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):  # a full disk does not say which file it was
            error.filename = error.filename or str(path)
        raise
