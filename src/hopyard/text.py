"""What can be written down: journals, messages and manifests hold text of UTF-8 and integers of 64 bits, and no others.

Text that came from bytes of another encoding (`os.fsdecode` of a Latin-1 file name) holds halves of characters, which
UTF-8 lacks. As a value of a configuration such text is refused, as another value would be written than was used; in an
error's words it is written with an escape. So are control characters there: a terminal would obey them.
"""

from __future__ import annotations

import re
from typing import Any

LEAST, MOST = -(1 << 63), (1 << 64) - 1
"""Integers that MessagePack has."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Keras paints some of its errors for a terminal."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tab and line feed."""


def sendable(text: str) -> bool:
    """Whether UTF-8 has it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """The words of an error as they can be written and shown: what UTF-8 lacks is spelled out (\\udce9), and so are
    control characters (\\x00), but for ends of lines and tabs. Colours are left out."""
    if _CONTROLS.search(text):
        text = _COLOURS.sub("", text).replace("\r\n", "\n")
        text = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return text if text.isascii() or sendable(text) else text.encode(errors="backslashreplace").decode()


def escaped_tree(tree: Any) -> Any:
    """The same of all text in plain values: lists, tuples, dicts and what they hold."""
    if isinstance(tree, str):
        return escaped(tree)
    if isinstance(tree, dict):
        return {escaped_tree(key): escaped_tree(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [escaped_tree(value) for value in tree]
    return tree


def unwritable(value: Any) -> str:
    """What is wrong with a text or an integer that cannot be written; "" when it can, and of any other value."""
    if isinstance(value, str) and not sendable(value):
        return "it has a character that UTF-8 lacks (of a file name, perhaps, in another encoding)"
    if isinstance(value, int) and not LEAST <= value <= MOST:
        return f"an integer must be from {LEAST} to {MOST} (64 bits); text can hold more"
    return ""
