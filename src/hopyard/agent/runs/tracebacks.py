"""What is told of an error that a recipe, its model or its loss raised: one line, and the traceback."""

from __future__ import annotations

import argparse
import traceback
from bdb import BdbQuit
from collections.abc import Callable
from typing import Any

from hopyard.code import places
from hopyard.errors import HopyardError
from hopyard.text import escaped, message_of, without_secrets
from hopyard.training.steps import NotFinite

HEAD, TAIL = 2000, 6000
"""Characters that are kept of the beginning and of the end of a traceback."""
_NO_COMMAND_LINE = (
    "workers have no command line of yours: parse it before hy.select, and give the recipe its values in config"
)
_NO_CONSOLE = "a debugger ended, as it reads no keys in a worker: use engine=hy.Inline(), which is in your own process"


def summary(error: BaseException, recipe: Callable[..., Any] | None = None) -> str:
    """Return one sentence: what was raised, and the innermost line of the user's code.

    Args:
        error: the error.
        recipe: the trial's, named where the error went through no line of the user's; None: it is not to blame.
    """
    kind = "" if isinstance(error, HopyardError) else f"{type(error).__name__}: "
    place = places.of_error(error) or _elsewhere(error, recipe)
    message = _NO_CONSOLE if isinstance(error, BdbQuit) else message_of(error)
    if isinstance(error, SystemExit) and (parser := _of_parser(error)):
        message += f": {parser}; {_NO_COMMAND_LINE}"
    return escaped(without_secrets(f"{kind}{message}") + (f" ({place})" if place else ""))


def _of_parser(error: SystemExit) -> str:
    """Return what argparse printed before it exited; "": it did not. The exception has the exit code alone, so the text
    is taken from the argument of `ArgumentParser.error`."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is argparse.ArgumentParser.error.__code__:
            return str(frame.f_locals["message"])
    return ""


def _elsewhere(error: BaseException, recipe: Callable[..., Any] | None) -> str:
    """Return the line of a library that raised the error, and the recipe whose model was computed there."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, HopyardError) or not frames:
        return ""
    origin = "" if recipe is None else places.of_function(recipe)
    line = places.named(frames[-1].filename, frames[-1].lineno)
    return f"{line}; the model is from {origin}" if origin else line


def trace(error: BaseException) -> str:
    """Return the traceback, cut in the middle where it is long; "" where a loss is not finite: no line is to blame."""
    if isinstance(error, NotFinite):
        return ""
    text = escaped(without_secrets("".join(traceback.format_exception(error))))
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n  … {len(text) - HEAD - TAIL:,} characters are left out here …\n{text[-TAIL:]}"
