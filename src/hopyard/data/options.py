"""The options of a data set, checked when it is named: its columns by name, and how it is cut. Knows no types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hopyard.checks import closest, one_of, scalar, sequence, whole
from hopyard.data.manifest import Value
from hopyard.errors import SpecError
from hopyard.text import sendable, shown, unwritable

Names = str | list[str]
Assign = Literal["round_robin", "contiguous"]


class Encoding(msgspec.Struct, frozen=True):
    """How a column of categories becomes numbers; `values` None: its sorted unique values over all rows."""

    kind: Literal["one-hot", "index"]
    values: list[Value] | None = None


class ColumnSpec(msgspec.Struct, frozen=True):
    """The columns a data set uses, by name. `columns` makes it from what the user wrote."""

    inputs: dict[str, Names]
    targets: dict[str, Names]
    weight: str | None = None
    validation: str | None = None
    encode: dict[str, Encoding] = {}
    standardize: bool | list[str] = False
    key: list[str] = []
    """Columns whose values decide where a row goes; none: the row's number, or all that is read of it."""

    @property
    def features(self) -> list[str]:
        """Columns of the inputs, each once."""
        return _flat(self.inputs)

    @property
    def labels(self) -> list[str]:
        """Columns of the targets, each once."""
        return _flat(self.targets)

    @property
    def names(self) -> list[str]:
        """All columns that are needed, each once."""
        return list(dict.fromkeys([*self.content, *self.key]))

    @property
    def content(self) -> list[str]:
        """Columns that rows are read for, each once."""
        extra = [name for name in (self.weight, self.validation) if name is not None]
        return list(dict.fromkeys([*self.features, *self.labels, *extra]))


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How rows become partitions.

    Attributes:
        spec: the columns.
        partitions: how many, of the training rows and of the validation rows.
        assign: how rows go to partitions.
        validates: whether there are to be validation rows.
        fraction: share of the rows that validate; 0: none, or a column or a second data set names them.
        seed: decides which rows those are.

    Raises:
        SpecError: a value is not allowed.
    """

    spec: ColumnSpec
    partitions: int = 8
    assign: Assign = "round_robin"
    validates: bool = False
    fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", whole("partitions", self.partitions, 1))
        object.__setattr__(self, "seed", whole("seed", self.seed))
        object.__setattr__(self, "assign", one_of("assign", self.assign, ("round_robin", "contiguous")))
        if self.spec.key and self.assign != "round_robin":
            raise SpecError(f"key = {self.spec.key!r} says which rows lie together: leave out assign={self.assign!r}")


def columns(
    *, features: Any, label: Any, weight: Any, validation: str | None, encode: Any, standardize: Any, key: Any = None
) -> ColumnSpec:
    """Checks what the user wrote and returns it in one form.

    Raises:
        SpecError: names the argument, its value and what is allowed.
    """
    inputs = _named("features", features, "inputs")
    if not inputs:
        raise SpecError("features names no column; give one name, a list of names or a dict of these")
    targets = {} if label is None else _named("label", label, "targets")
    weight = None if weight is None else column_name(weight)
    if weight is not None and not isinstance(weight, str):
        raise SpecError(f"weight must be the name of one column, or None, got {shown(weight)}")
    if not isinstance(encode, Mapping):
        raise SpecError(
            f'encode must be a dict from column to "one-hot", "index" or a list of values, got {shown(encode)}'
        )
    used = {*_flat(inputs), *_flat(targets)}
    encode = {column_name(name): how for name, how in encode.items()}
    for name in encode:
        if name not in used:
            raise SpecError(f"encode names {name!r}, which is neither a feature nor a label{closest(name, used)}")
    encodings = {name: _encoding(name, how) for name, how in encode.items()}
    standardize = sequence(standardize)
    if isinstance(standardize, list):
        standardize = [column_name(name) for name in standardize]
        for name in standardize:
            if name not in _flat(inputs):
                raise SpecError(f"standardize names {name!r}, which is no feature{closest(name, _flat(inputs))}")
            if name in encodings:
                raise SpecError(f"standardize names {name!r}, which is encoded as categories; leave out one of the two")
    elif not isinstance(standardize, bool):
        raise SpecError(f"standardize must be True, False or a list of feature columns, got {shown(standardize)}")
    keys = [] if key is None else _names("key", key)
    keys = [keys] if isinstance(keys, str) else keys
    return ColumnSpec(inputs, targets, weight, validation, encodings, standardize, keys)


def column_name(name: Any) -> Any:
    """Return the name of a column: an integer, which pandas takes for a name, as text; text of NumPy as Python's;
    anything else as it is, for the caller to refuse."""
    name = scalar(name)
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


def _flat(named: Mapping[str, Names]) -> list[str]:
    lists = ([names] if isinstance(names, str) else names for names in named.values())
    return list(dict.fromkeys(name for names in lists for name in names))


def _named(argument: str, value: Any, single: str) -> dict[str, Names]:
    if isinstance(value, Mapping):
        value = {column_name(name): names for name, names in value.items()}
        for name in value:
            if not isinstance(name, str) or not name or not sendable(name):
                raise SpecError(f"{argument} has the key {name!a}: names are text")
        return {name: _names(f"{argument}[{name!r}]", names) for name, names in value.items()}
    return {single: _names(argument, value)}


def _names(argument: str, value: Any) -> Names:
    value = sequence(value)
    value = [column_name(name) for name in value] if isinstance(value, list) else column_name(value)
    for name in value if isinstance(value, list) else [value]:
        if fault := unwritable(name):
            raise SpecError(f"{argument} = {value!a}: {fault}")
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(name, str) and name for name in value):
        twice = {name for name in value if value.count(name) > 1}
        if twice:
            raise SpecError(f"{argument} names {sorted(twice)[0]!r} twice")
        return value
    for at, name in enumerate(value if isinstance(value, list) else []):
        if not isinstance(name, str):
            raise SpecError(f"{argument}[{at}] = {name!r}: names of columns are text, {str(name)!r} perhaps")
        if not name:
            raise SpecError(f"{argument}[{at}] = '': a name has a character at least; rename the column")
    raise SpecError(f"{argument} must be the name of a column or a list of such names, got {shown(value)}")


def _encoding(name: str, how: Any) -> Encoding:
    kind: Literal["one-hot", "index"] = "one-hot"
    values = sequence(how)
    if isinstance(values, str) and values in ("one-hot", "index"):
        return Encoding("one-hot" if values == "one-hot" else "index")
    if isinstance(how, tuple) and len(how) == 2 and isinstance(how[0], str) and how[0] == "index":
        kind, values = "index", sequence(how[1])
    if isinstance(values, list) and values and all(isinstance(value, (bool, int, float, str)) for value in values):
        if len(set(values)) < len(values):
            raise SpecError(f"encode[{name!r}] = {shown(how)}: a value is there twice")
        return Encoding(kind, values)
    raise SpecError(
        f'encode[{name!r}] must be "one-hot", "index", a list of values or ("index", list), got {shown(how)}'
    )
