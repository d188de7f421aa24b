"""What can be written down: journals, messages and manifests hold text of UTF-8 and integers of 64 bits, and no others.

Text that came from bytes of another encoding (`os.fsdecode` of a Latin-1 file name) holds halves of characters, which
UTF-8 lacks. As a value of a configuration such text is refused, as another value would be written than was used; in an
error's words it is written with an escape.
"""

from __future__ import annotations

from typing import Any

LEAST, MOST = -(1 << 63), (1 << 64) - 1
"""Integers that MessagePack has."""


def sendable(text: str) -> bool:
    """Whether UTF-8 has it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """The text, with \\udce9 spelled out where UTF-8 lacks a character."""
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
        return f"an integer from {LEAST} to {MOST} is needed (64 bits); text can hold more"
    return ""
