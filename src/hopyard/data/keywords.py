"""The keywords that constructors of `Dataset` share: the default and the text of each, declared once.

Their types are in TypedDicts beside `Dataset`. `takes` puts all of it into the signatures and docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, signature
from textwrap import fill
from typing import Any, NamedTuple, TypeVar, cast

from hopyard.checks import closest

F = TypeVar("F", bound=Callable[..., Any])

CACHE_BYTES = 64 << 30
"""Bytes that the cache of a host may take, unless the user says otherwise."""


class Option(NamedTuple):
    """One keyword of the constructors."""

    default: Any
    text: str
    """For their docstrings."""


OPTIONS = {
    "features": Option(
        Parameter.empty,
        "a list of columns (numbers, booleans, lists of one length, categories): one float32 matrix; the name of one "
        "column: it keeps its type; or a dict of these: named inputs.",
    ),
    "label": Option(
        None,
        "one column (whole numbers and booleans become int64, others float32), a list (one matrix), a dict, or None.",
    ),
    "weight": Option(None, "a column of numbers, or None."),
    "encode": Option(
        None,
        'column → "one-hot", "index", a list of values (one-hot in this order), ("index", list), or hy.Categories(…), '
        "which keeps a category for other values. Without a list the values are the sorted unique ones over all rows.",
    ),
    "impute": Option(
        None,
        'feature → what stands for its missing values (null, NaN): "mean" of the training rows, or a number; for '
        'columns in encode "most_frequent" of the training rows (of equals the least), or ("constant", value).',
    ),
    "ragged": Option(
        None,
        "feature columns whose rows are lists of integers or floating-point numbers, of any length >= 1; each is an "
        'input by itself. A batch is padded with zeros to its longest row, and the input "ids" has the mask '
        '"ids_mask", true where there are values; or column → name of its mask, None for no mask.',
    ),
    "max_length": Option(None, "values after which each row of the columns in `ragged` is cut; None: nowhere."),
    "validation": Option(
        0.0,
        "fraction of the rows in [0, 1), the name of a column of true and false (0 is the fraction; where that is the "
        'name of the column, give "0"), or a second Dataset.',
    ),
    "key": Option(
        None,
        "columns by whose values rows are told apart, such as a user's number: rows of one key go to validation "
        "together, and to one partition. The transform keeps these columns.",
    ),
    "partitions": Option(8, "how many, of the training rows and of the validation rows."),
    "standardize": Option(
        False,
        "True, or a list of feature columns: subtract the training rows' mean, divide by their deviation. True means "
        "all numbers in lists of features, and single columns of floating point; never categories.",
    ),
    "transform": Option(
        None,
        "a function of a record batch, run once, when the cache is made. Its code, and all that it reaches, is part of "
        "what names the entry, as it is when the data set is first prepared; what it reads when it runs (files, the "
        "environment, the clock) is not, nor what you set on a library's module or register with an abstract class, "
        "nor `__name__` and `__doc__` that it reads, nor fields that `__getstate__` leaves out: pass another constant, "
        "or delete the cache, when that changed.",
    ),
    "seed": Option(0, "of the choice of validation rows."),
    "assign": Option(
        "round_robin",
        '"round_robin": the j-th training row goes to training partition j modulo their number, and validation rows '
        'likewise; with key=, rows go by their keys. "contiguous": each partition is a contiguous '
        "range of the rows.",
    ),
    "cache_bytes": Option(CACHE_BYTES, "the cache evicts what was used longest ago beyond this."),
}


def takes(options: type) -> Callable[[F], F]:
    """Lets a function that ends with `**options` take the keywords of a TypedDict: its signature and docstring show
    them, wrong ones are a TypeError, and it gets the default of each that is left out.
    """

    def decorate(function: F) -> F:
        own_signature = signature(function)
        own_parameters = [one for one in own_signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        names = [name for name in OPTIONS if name in options.__annotations__]
        shared_parameters = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=OPTIONS[name].default,
                annotation=options.__annotations__[name].__forward_arg__,
            )
            for name in names
        ]
        full_signature = own_signature.replace(parameters=[*own_parameters, *shared_parameters])

        @wraps(function)
        def called(*positional: Any, **named: Any) -> Any:
            for name in named.keys() - full_signature.parameters.keys():
                others = [other for other in full_signature.parameters if other != "cls"]
                raise TypeError(f"{function.__qualname__} takes no argument {name!r}{closest(name, others)}")
            try:
                bound = full_signature.bind(*positional, **named)
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}: {error}") from None
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        called.__signature__ = full_signature  # type: ignore[attr-defined]
        called.__doc__ = _with_texts(cleandoc(function.__doc__ or ""), names)
        return cast(F, called)

    return decorate


def _with_texts(doc: str, names: list[str]) -> str:
    """A docstring with the texts of these options behind the arguments that it has itself."""
    head, mark, rest = doc.partition("\nRaises:")
    head = head.rstrip() if "\nArgs:" in head else f"{head.rstrip()}\n\nArgs:"
    texts = [
        fill(f"{name}: {OPTIONS[name].text}", 108, initial_indent=" " * 4, subsequent_indent=" " * 8) for name in names
    ]
    return "\n".join([head, *texts, mark + rest])
