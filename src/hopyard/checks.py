"""Checks of the arguments of public functions, with one wording for their errors."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hopyard.errors import SpecError
from hopyard.text import sendable, shown, unwritable, without_secrets

LONGEST = 1e9
"""Seconds that stand for more: 31 years. No lock can wait for 300."""
GUESSES = 20
"""How many wrong names are compared with all existing ones. For thousands of each this would take long."""

_ADDRESS = re.compile(r"[^\s/:@\[\]]+|[0-9A-Fa-f.%\w]*:[0-9A-Fa-f:.%\w]*:[0-9A-Fa-f:.%\w]*")
"""A name or an IPv4 address; an IPv6 address."""
LONGEST_VARIABLE = 128 * 1024
"""Bytes of an environment variable and its name, of Linux (MAX_ARG_STRLEN)."""


def closest(name: Any, candidates: Iterable[str]) -> str:
    """Return the end of an error message: what was probably meant, and the names that exist."""
    names = [str(candidate) for candidate in candidates]
    guess = _guess(name, names) if isinstance(name, str) else ""
    return f"; {guess}{' ' if guess else ''}{_listed(names)}"


def no_such(kind: str, wrong: Sequence[str], candidates: Iterable[str]) -> str:
    """Return the end of an error message about one or several names that do not exist, "no column 'b'" for example:
    what was probably meant by each, and the names that exist.

    Args:
        kind: what has the names, in the singular: "column".
        wrong: the names, at least one.
        candidates: the names that exist.
    """
    names = [str(candidate) for candidate in candidates]
    if len(wrong) == 1:
        return f"no {kind} {shown(wrong[0])}{closest(wrong[0], names)}"
    guesses = [(name, _guess(name, names) if at < GUESSES else "") for at, name in enumerate(wrong)]
    each = ", ".join(shown(name) + (f" ({guess})" if guess else "") for name, guess in guesses)
    return f"no {kind}s {each}; {_listed(names)}"


def _guess(name: str, names: Sequence[str]) -> str:
    """Return the question for the name that was probably meant; "" where none is like it."""
    if same := next((each for each in names if each.lower() == name.lower()), None):
        return f"did you mean {same!r}, as case counts here?"
    matches = get_close_matches(name, names, 1, 0.6)
    return f"did you mean {matches[0]!r}?" if matches else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    return f"there are: {', '.join(map(repr, names[:40])) + more or 'none'}"


def metric_fault(name: Any) -> str:
    """Return why no metric of a recipe may have this name, and what to do; "": it may have it."""
    if not isinstance(name, str) or not sendable(name):
        return "a name is text that UTF-8 can write"
    if name.startswith("val_"):
        own = name.removeprefix("val_") or "accuracy"
        return (
            f'each metric is computed in training and in validation, where "val_" is put before its name; call it '
            f'"{own}", and metric="val_{own}" is its value in validation'
        )
    if name.startswith("last_"):
        return 'tables have each metric of the last epoch with "last_" before its name; give it another name'
    return '"seconds" is the time that workers spent; give it another name' if name == "seconds" else ""


def scalar(value: Any) -> Any:
    """Return a scalar of NumPy (or one of no axis, of torch) as Python's value; anything else as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return str.__str__(value) if isinstance(value, str) else value


def sequence(value: Any) -> Any:
    """Return a list, tuple or range, or an array of one axis (of NumPy, an index or column of pandas), as a list of
    Python's values; anything else as `scalar` does."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()
    return [scalar(item) for item in value] if isinstance(value, (list, tuple, range)) else scalar(value)


def names(value: Any) -> list[str] | None:
    """Return a list of texts, as `sequence` takes one, as a list of Python's; None where it is none."""
    items = sequence(value)
    return items if isinstance(items, list) and all(isinstance(item, str) for item in items) else None


def column_name(name: Any) -> Any:
    """Return the name of a column: an integer, which pandas takes for a name, as text; text of NumPy as Python's;
    anything else as it is, for the caller to refuse."""
    name = scalar(name)
    return shown(name) if isinstance(name, int) and not isinstance(name, bool) else name


def column_names(value: Any) -> list[str] | None:
    """Return a list of names of columns, as `sequence` and `column_name` take them; None where it is none."""
    items = sequence(value)
    return names([column_name(item) for item in items]) if isinstance(items, list) else None


def real(value: Any) -> float:
    """Return a number of Python or NumPy as a float; NaN for anything else, such as True, text, or an array."""
    value = scalar(value)
    if isinstance(value, (bool, str, bytes)) or getattr(value, "ndim", None) or not hasattr(value, "__float__"):
        return math.nan
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - the user's own __float__
        return math.nan


def number(name: str, value: Any, least: float = -math.inf) -> float:
    """Return the argument `name`, a finite number >= `least`, as a float.

    Raises:
        SpecError: it is no such number.
    """
    result = real(value)
    if math.isfinite(result) and result >= least:
        return result
    limit = "" if least == -math.inf else f" >= {least:g}"
    raise SpecError(f"{name} must be a finite number{limit}, got {shown(value)}")


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return the argument `name`, an int of Python or NumPy in [least, most], as an int.

    Raises:
        SpecError: it is no such int, or has more than 64 bits.
    """
    plain = scalar(value)
    if isinstance(plain, Integral) and not isinstance(plain, bool):
        integer = int(plain)
        if (least is None or integer >= least) and (most is None or integer <= most):
            if fault := unwritable(integer):
                raise SpecError(f"{name} = {shown(value)}: {fault}")
            return integer
    limits = f" from {least} to {most}" if most is not None else "" if least is None else f" >= {least}"
    raise SpecError(f"{name} must be an integer{limits}, got {shown(value)}")


def seconds(name: str, value: Any, *, zero: bool = False, most: float = math.inf, none: str = "") -> float:
    """Return the argument `name`, a finite number of seconds > 0 (or >= 0), as a float.

    Args:
        name: the name of the argument.
        value: an int or a float, of Python or NumPy.
        zero: whether 0 is allowed.
        most: the largest value that is allowed.
        none: what None means, for the message, where the caller takes None; for example "for any".

    Raises:
        SpecError: it is no such number.
    """
    result = real(value)
    if (result > 0 or (zero and result == 0)) and result <= most and result < math.inf:
        return min(result, LONGEST)
    limits = f" {'>=' if zero else '>'} 0" + ("" if most == math.inf else f" and <= {most:g}")
    raise SpecError(
        f"{name} must be a finite number of seconds{limits}{f', or None {none}'.rstrip() if none else ''}, "
        f"got {shown(value)}"
    )


def fraction(name: str, value: Any, also: str = "") -> float:
    """Return the argument `name`, a number in [0, 1), as a float.

    Args:
        name: the name of the argument.
        value: an int or a float, of Python or NumPy.
        also: what else the caller takes, for the message.

    Raises:
        SpecError: it is no such number.
    """
    share = real(value)
    if not 0 <= share < 1:
        raise SpecError(f"{name} must be a fraction in [0, 1){f', or {also}' if also else ''}, got {shown(value)}")
    return share


def flag(name: str, value: Any) -> bool:
    """Return the argument `name`, which is True or False, of Python or NumPy.

    Raises:
        SpecError: it is neither.
    """
    value = scalar(value)
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be True or False, got {shown(value)}")
    return value


def instance_of(kinds: type | tuple[type, ...], expected: str, name: str, value: Any) -> Any:
    """Return the argument `name`, an instance of `kinds`, which the message calls `expected`.

    Raises:
        SpecError: it is none.
    """
    if isinstance(value, kinds):
        return value
    raise SpecError(f"{name} must be {expected}, got {shown(value)}")


def path(name: str, value: Any, kind: str = "a path") -> str:
    """Return the argument `name`, a path, as text; a URL of a file, such as `file:///tmp/x`, as the path `/tmp/x`.

    Args:
        name: the name of the argument.
        value: text or an `os.PathLike` of text.
        kind: "a path" or what else the caller takes, such as "a path or URL", for the message.

    Raises:
        SpecError: it is no such path, is empty, has a NUL, which no file system takes, or is a URL with a secret.
    """
    try:
        text = os.fspath(value)
        os.fsencode(text)  # half a surrogate pair is no name
    except Exception:  # noqa: BLE001 - the user's own __fspath__
        text = ""
    text = without_scheme(str.__str__(text)) if isinstance(text, str) else ""
    if not text or "\0" in text:
        raise SpecError(f"{name} must be {kind}, of at least one character and without NUL, got {shown(value)}")
    if "://" in text and without_secrets(text) != text:
        scheme = text.partition("://")[0]
        raise SpecError(
            f"{name} is a URL {scheme}://… with a password, token or signature in it, and URLs are written to files "
            "and logs: leave it out, and let the file system's driver find it in the environment of each process, as "
            "fsspec finds FSSPEC_FTP_PASSWORD"
        )
    return text


def expanded(text: str) -> Path:
    """Return a path of this host as an absolute one, without "~".

    Raises:
        SpecError: the home that "~" stands for is not known.
    """
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise SpecError(f'{text}: there is no home for "~" ({error}); give a path without it, or set HOME') from error


def without_scheme(text: str) -> str:
    """Return the path of a `file:` URL, and any other text unchanged.

    In `file:///a%20b`, escapes stand for characters, and "#" and "?" are part of the name: it is "/a b". `file:/a`, as
    Hadoop prints it, has no escapes. (What Spark itself opens, as `spark.ml` does, follows Hadoop's rules.)

    Raises:
        SpecError: the URL names another host than "localhost".
    """
    if not text.startswith("file://"):
        return text.removeprefix("file:") if text.startswith("file:/") else text
    name = unquote(text.removeprefix("file://").removeprefix("localhost"), errors="surrogateescape")
    if not name.startswith("/"):
        raise SpecError(f"{text}: the URL of a file has three slashes, as file:///{name} has")
    return name


def one_of(name: str, value: Any, allowed: Collection[Any]) -> Any:
    """Return the argument `name`, which is one of `allowed`.

    Raises:
        SpecError: it is none of them.
    """
    value = scalar(value)
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        *first, last = (f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in allowed)
        allowed_text = f"{', '.join(first)} or {last}" if first else last
        raise SpecError(f"{name} must be {allowed_text}, got {shown(value)}")
    return value


def address(name: str, value: Any) -> str | None:
    """Return the argument `name`, an address of this host that others can dial; None: it is to be found out.

    Raises:
        SpecError: it is neither a name nor an address.
    """
    text = scalar(value)
    if text is None or (isinstance(text, str) and text.isprintable() and _ADDRESS.fullmatch(text)):
        return text
    raise SpecError(
        f"{name} must be a name or address of this host that others can dial, without a port (port= has it), got "
        f"{shown(value)}"
    )


def environment(name: str, value: Any) -> dict[str, str]:
    """Return the argument `name` as environment variables.

    Raises:
        SpecError: it is not a mapping of text to text, or no process could have such variables.
    """
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a mapping of environment variables, got {shown(value)}")
    variables = {scalar(key): scalar(text) for key, text in value.items()}
    for key, text in variables.items():
        both_text = isinstance(key, str) and isinstance(text, str)
        if not both_text or not key or "=" in key or "\0" in key + text or not sendable(key + text):
            kind = type(text).__name__  # the value may be a secret
            raise SpecError(f"{name}[{key!r}], of type {kind}: names and values are text without NUL, names without =")
        if len(f"{key}={text}".encode(errors="surrogateescape")) >= LONGEST_VARIABLE:
            raise SpecError(
                f"{name}[{key!r}] has {len(text):,} characters, and no process can have a variable of more than "
                f"{LONGEST_VARIABLE:,} bytes: put it into a file, and give its path"
            )
    return variables
