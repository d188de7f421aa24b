"""The display of an interrupt: Ctrl-C in a terminal, or the stop button of a notebook."""

from __future__ import annotations


def without_frames(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """Return an interrupt without the thirty lines of where it was.

    IPython shows it as one line: its traceback has the source around each frame that is left, and a warning has said
    how to go on. Source: "Custom exception tracebacks" in IPython's documentation.
    """
    error.__dict__["_render_traceback_"] = lambda: [type(error).__name__]
    return error.with_traceback(None)
