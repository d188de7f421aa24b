"""Which text and integers can be written: journals, messages and manifests hold UTF-8 and integers of 64 bits only.

Text decoded from bytes of another encoding (`os.fsdecode` of a Latin-1 file name) holds lone surrogates, which UTF-8
lacks. As a value of a configuration such text is refused, because another value would be written than was used; in the
text of an error it is escaped. So are control characters there, because a terminal would obey them.
"""

from __future__ import annotations

import re
from typing import Any

LEAST, MOST = -(1 << 63), (1 << 64) - 1
"""The range of integers in MessagePack."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Keras colours some of its errors for a terminal."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tab and line feed."""


def sendable(text: str) -> bool:
    """Whether the text can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """Return the text of an error as it can be written and shown: characters that UTF-8 lacks are escaped (\\udce9),
    and so are control characters (\\x00) except ends of lines and tabs. Colours are left out."""
    if _CONTROLS.search(text):
        text = _COLOURS.sub("", text).replace("\r\n", "\n")
        text = _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return text if text.isascii() or sendable(text) else text.encode(errors="backslashreplace").decode()


def escaped_tree(tree: Any) -> Any:
    """Return plain values (lists, tuples, dicts and their contents) with all text escaped."""
    if isinstance(tree, str):
        return escaped(tree)
    if isinstance(tree, dict):
        return {escaped_tree(key): escaped_tree(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [escaped_tree(value) for value in tree]
    return tree


def unwritable(value: Any) -> str:
    """Return what is wrong with text or an integer that cannot be written; "" when it can, and for other values."""
    if isinstance(value, str) and not sendable(value):
        return "it has a character that UTF-8 lacks (of a file name, perhaps, in another encoding)"
    if isinstance(value, int) and not LEAST <= value <= MOST:
        return f"an integer must be from {LEAST} to {MOST} (64 bits); text can hold more"
    return ""
