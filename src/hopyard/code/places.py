"""Names lines of the user's code, as people look for them: "train.py, line 12, in forward"."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any

from hopyard.code.modules import is_users, top

CHAIN = 10
"""How many errors of a chain (`raise … from …`) are looked at."""


def of_error(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error went through; "" where it went through none. Where the
    error itself did not, the errors that it was raised from are asked."""
    depth = 0
    cause: BaseException | None = error
    while cause is not None and depth < CHAIN:
        place = _innermost(reversed(list(traceback.walk_tb(cause.__traceback__))))
        if place:
            return place
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        depth += 1
    return ""


def before_hopyard(trace: TracebackType | None) -> int:
    """Return how many frames of a traceback come before Hopyard's own, below the innermost line of the user's code; 0
    where there is no such line."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    last = max((at for at, frame in enumerate(frames) if _is_users(frame)), default=-1)
    if last < 0:
        return 0
    own = (at for at in range(last + 1, len(frames)) if top(str(frames[at].f_globals.get("__name__"))) == "hopyard")
    return next(own, len(frames))


def of_stack(frame: FrameType | None, end: str) -> str:
    """Return the innermost line of the user's code that runs now; "" where none does.

    Args:
        frame: the innermost frame to look at.
        end: name of the module whose frames end the search: what called that is not meant.
    """

    def until() -> Iterator[tuple[FrameType, int]]:
        for each, line in traceback.walk_stack(frame):
            if each.f_globals.get("__name__") == end:
                return
            yield each, line

    return _innermost(until())


def of_function(function: Callable[..., Any]) -> str:
    """Return where a function, or the class of a callable object, is defined; "" where that is not known."""
    while isinstance(function, functools.partial):
        function = function.func
    target: Any = inspect.unwrap(function)
    code = getattr(target, "__code__", None) or getattr(target.__call__, "__code__", None)
    return named(code.co_filename, code.co_firstlineno, code.co_name) if isinstance(code, CodeType) else ""


def named(file: str, line: int | None, function: str = "") -> str:
    """Return the name of a line. `function`: the function that it is in; empty, or "<module>": none is named."""
    name = "a notebook cell" if "ipykernel_" in file else PurePath(file).name
    return f"{name}, line {line}" + (f", in {function}" if function not in ("", "<module>") else "")


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the first line that is the user's, of frames that begin with the innermost one."""
    for frame, line in frames:
        if _is_users(frame):
            return named(frame.f_code.co_filename, line, frame.f_code.co_name)
    return ""


def _is_users(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    file = frame.f_code.co_filename
    generated = file.startswith("<") or "__autograph_generated_file" in file  # TensorFlow's copies of functions
    return isinstance(module, str) and not generated and is_users(module)
