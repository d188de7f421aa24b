"""The files that views of a run are written to, at a path of the user or in the run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from hopyard import checks
from hopyard.errors import SpecError
from hopyard.text import shown

PICTURES = (".png", ".pdf", ".svg")
"""Ends of the names of pictures."""


def is_picture(path: Path) -> bool:
    """Return whether the suffix is that of an image. Any other file is an HTML page."""
    return path.suffix.lower() in PICTURES


@contextlib.contextmanager
def written(
    method: str, path: str | Path | None, default: Path, endings: tuple[str, ...] = (".html", *PICTURES)
) -> Iterator[Path]:
    """Yield the file that a method of a run writes.

    Args:
        method: its name, for messages.
        path: what the user gave; None: nothing.
        default: the file then.
        endings: ends that its name may have. A page may also end in .htm, or have no ending.

    Raises:
        SpecError: its name has another ending; or the path is the user's, and cannot be written to.
    """
    target = default if path is None else Path(checks.path("path", path))
    suffix, where = target.suffix.lower(), f"{method}(path={shown(str(target))})"
    if suffix not in endings and not (".html" in endings and suffix in (".htm", "")):
        raise SpecError(f"{where}: its name must end with {', '.join(endings)}")
    try:
        yield target
    except OSError as error:
        if path is None:
            raise
        raise SpecError(f"{where}: {error.strerror}; give a file in a folder that this user may write to") from error
