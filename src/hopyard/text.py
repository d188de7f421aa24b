"""Which text and integers can be written: journals, messages and manifests hold UTF-8 and integers of 64 bits only.

Text decoded from bytes of another encoding (`os.fsdecode` of a Latin-1 file name) holds lone surrogates, which UTF-8
lacks. As a value of a configuration such text is refused, because another value would be written than was used; in the
text of an error it is escaped. So are control characters there, because a terminal would obey them.
"""

from __future__ import annotations

import html
import json
import os
import re
import reprlib
import shlex
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

LEAST, MOST = -(1 << 63), (1 << 64) - 1
"""The range of integers in MessagePack."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Keras colours some of its errors for a terminal."""
_PASSWORD = re.compile(r"(://[^/@?#\[\s:]*):(?!\d+(?:[/?#\s]|$))\S*@")
"""The password in user:password@ of a URL. What follows the colon of host:port is digits and the path."""
_TOKEN = re.compile(r"(https?://)[^/@?#\[\s:]+@")
"""Services let clients in by https://TOKEN@host."""
_SECRETS = re.compile(
    r"([?&](?:[\w.-]*(?:password|passwd|pwd|token|secret|signature|credential|delegation|odbc_connect|"
    r"(?:access|api|account|private)[_-]?key)|sig|key)=)[^&#\s]+",
    re.IGNORECASE,
)
"""URL parameters that grant access to whoever holds the URL, such as those of WebHDFS, Azure and presigned URLs."""
LINE = 4_000
"""Characters of a line in the text of an error."""
SHOWN = 200
"""Characters of a value in an error."""
RANGES = 5
"""Ranges of numbers in an error."""
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxlong, _REPR.maxother = 4, SHOWN, SHOWN, SHOWN
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 10


def shown(value: Any) -> str:
    """Return a value for the text of an error: its `repr` in one line, cut where it is long; the type's name where the
    object cannot give it."""
    try:
        text = _REPR.repr(value)
    except Exception:  # noqa: BLE001 - the user's own __repr__; ValueError for integers of thousands of digits
        text = f"<{type(value).__name__}>"
    return escaped(re.sub(r"\s*\n\s*", " ", text))


def shell_command(verb: str, directory: str | os.PathLike[str], options: str = "") -> str:
    """Return a command of Hopyard's command line that can be pasted into a shell."""
    return f"hopyard {verb} {shlex.quote(os.fspath(directory))}{options}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return things of this kind by their numbers, a range where they follow each other: "partitions 60–63, 0–7"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}–{last}" if last > first else str(first) for first, last in ranges[:RANGES]]
    more = f", … ({len(numbers)} in all)" if len(ranges) > RANGES else ""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(texts)}{more}"


def sendable(text: str) -> bool:
    """Whether the text can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """Return text as it can be written and shown: ends of lines, tabs and what `str.isprintable` admits stay, any other
    character is escaped (\\x00, \\u200b, \\udce9). Colours are left out."""
    if text.isprintable():
        return text
    text = _COLOURS.sub("", text).replace("\r\n", "\n")
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def readable(text: str) -> str:
    """Return text as `escaped` does, with its lines cut after `LINE` characters."""
    lines = escaped(text).split("\n")
    return "\n".join(f"{line[:LINE]} … ({len(line) - LINE:,} more)" if len(line) > LINE else line for line in lines)


def without_secrets(text: str) -> str:
    """Return text without the secrets of the URLs in it: drivers print URLs in their errors."""
    return without_passwords(_TOKEN.sub(r"\1", text))


def without_passwords(text: str) -> str:
    """Return text without the passwords and secret parameters of the URLs in it. Names of users stay."""
    return _SECRETS.sub(r"\1", _PASSWORD.sub(r"\1@", text))


def message_of(error: BaseException) -> str:
    """Return the text of an error; of one whose class cannot give it, what it raises instead."""
    try:
        return str(error)
    except Exception as odd:  # noqa: BLE001 - the user's own __str__
        return f"(its text cannot be had: {type(odd).__name__})"


def error_line(error: BaseException) -> str:
    """Return the class of an error and its text in one line, "KeyError: 'lr'"; the class alone where it has no text."""
    text = " ".join(message_of(error).split())
    return escaped(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def numeral(number: float) -> str:
    """Return a number as a user would write it: "1000000", "0.1", "1e-05"."""
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def one_line(text: str) -> str:
    """Return text as it can be shown in one line, of a table for example: ends of lines and tabs are escaped too."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def html_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a title and a table as a notebook shows an object. The first row has the names of the columns."""
    lines = [
        "".join(f"<{tag}>{html.escape(escaped(cell))}</{tag}>" for cell in row)
        for tag, row in zip(chain(["th"], repeat("td")), rows, strict=False)
    ]
    return f"<p>{html.escape(escaped(title))}</p><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def escaped_json(text: str) -> str:
    """Return JSON with such characters escaped in its texts: its values stay as they are."""
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] if each > "\x7f" else r"\u007f"
        for each in text
    )


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
