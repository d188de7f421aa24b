"""The options of a data set, checked when it is named: its columns by name, and how it is cut. Knows no types."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hopyard.checks import closest, column_name, one_of, scalar, sequence, whole
from hopyard.data.manifest import Value
from hopyard.errors import SpecError
from hopyard.text import sendable, shown, unwritable

Names = str | list[str]
LARGEST = 3.4028234663852886e38
"""The largest number of float32."""
Assign = Literal["round_robin", "contiguous"]


@dataclass(frozen=True, slots=True)
class Categories:
    """How `encode=` makes numbers of a column, with one more category for values that are none of the others:
    `encode={"city": hy.Categories("one-hot", min_frequency=10)}`.

    Attributes:
        kind: "one-hot" or "index".
        values: the categories in their order; None: the values that at least `min_frequency` training rows have,
            sorted.
        handle_unknown: "other": the last category stands for all other values. "error": they are refused, and without
            `values` the categories are those of all rows, as with a plain "one-hot" or "index".
        min_frequency: how many training rows a category has at least; with "other" and without `values` only.

    Raises:
        SpecError: a value is not allowed.
    """

    kind: Literal["one-hot", "index"] = "one-hot"
    values: Any = None
    handle_unknown: Literal["other", "error"] = "other"
    min_frequency: int = 1

    def __post_init__(self) -> None:
        checked = {
            "kind": one_of("Categories(kind=)", self.kind, ("one-hot", "index")),
            "values": None if self.values is None else _values("Categories(values=)", self.values),
            "handle_unknown": one_of("Categories(handle_unknown=)", self.handle_unknown, ("other", "error")),
            "min_frequency": whole("Categories(min_frequency=)", self.min_frequency, 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.min_frequency > 1 and (self.handle_unknown == "error" or self.values is not None):
            raise SpecError(
                f"Categories(min_frequency={self.min_frequency}): rare values need the category that "
                'handle_unknown="other" gives, and values= names the categories by itself; leave one of them out'
            )


class Encoding(msgspec.Struct, frozen=True):
    """How a column of categories becomes numbers; `values` None: its sorted unique values over all rows, or with
    `min_frequency` those of training rows."""

    kind: Literal["one-hot", "index"]
    values: list[Value] | None = None
    min_frequency: int | None = None
    """There is one more category, for other values: those that fewer training rows have. None: there is none."""

    @property
    def other(self) -> bool:
        """Whether there is a category for other values."""
        return self.min_frequency is not None


class Fill(msgspec.Struct, frozen=True):
    """What stands for the missing values of a feature: a statistic of the training rows, or a value."""

    strategy: Literal["mean", "most_frequent", "constant"]
    value: Value | None = None


class ColumnSpec(msgspec.Struct, frozen=True):
    """The columns a data set uses, by name. `columns` makes it from what the user wrote."""

    inputs: dict[str, Names]
    targets: dict[str, Names]
    weight: str | None = None
    validation: str | None = None
    encode: dict[str, Encoding] = {}
    standardize: bool | list[str] = False
    key: list[str] = []
    """Columns whose values decide where a row goes; none: the row's number, or its features."""
    impute: dict[str, Fill] = {}
    """Replacements for the missing values of columns; {}: none may be missing."""
    ragged: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET
    """Inputs whose rows have any length → their masks; None: no mask. Where it is unset, the names of entries are as
    they were before there was such an input."""
    max_length: int | msgspec.UnsetType = msgspec.UNSET
    """Values after which these rows are cut."""

    @property
    def counted(self) -> set[str]:
        """Columns of categories whose values in training rows are counted."""
        frequent = {name for name, fill in self.impute.items() if fill.strategy == "most_frequent"}
        return frequent | {name for name, each in self.encode.items() if each.other and each.values is None}

    @property
    def uses(self) -> list[tuple[str, list[str]]]:
        """The columns by use: feature, label, weight, validation and key."""
        weight, validation = ([] if name is None else [name] for name in (self.weight, self.validation))
        named = ("feature", self.features), ("label", self.labels), ("weight", weight), ("validation", validation)
        return [*named, ("key", self.key)]

    def treatment(self, name: str) -> str:
        """Return how a column becomes numbers, in words; "" where it stays as it is."""
        scaled = name in (self.standardize if isinstance(self.standardize, list) else self.features)
        encoding, fill = self.encode.get(name), self.impute.get(name)
        ragged = any(self.inputs[each] == name for each in self.ragged or ())
        other = "any length" if ragged else "standardized" if self.standardize and scaled else ""
        how = encoding.kind if encoding else other
        return ", ".join(filter(None, [how, f"missing: {fill.strategy}" if fill else ""]))

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
    *,
    features: Any,
    label: Any,
    weight: Any,
    validation: str | None,
    encode: Any = None,
    standardize: Any = False,
    key: Any = None,
    impute: Any = None,
    ragged: Any = None,
    max_length: Any = None,
) -> ColumnSpec:
    """Checks what the user wrote and returns it in one form.

    Raises:
        SpecError: names the argument, its value and what is allowed.
    """
    masks = ragged_columns(ragged)
    single = column_name(features)
    inputs = _named("features", features, single if isinstance(single, str) and single in masks else "inputs")
    if not inputs:
        raise SpecError("features names no column; give one name, a list of names or a dict of these")
    targets = {} if label is None else _named("label", label, "targets")
    if not isinstance(features, Mapping):  # with named inputs it is meant: a decoder reads what it is to give next
        _refuse_answers(_flat(inputs), _flat(targets))
    weight = None if weight is None else column_name(weight)
    if weight is not None and not isinstance(weight, str):
        raise SpecError(f"weight must be the name of one column, or None, got {shown(weight)}")
    encode = {} if encode is None else encode
    if not isinstance(encode, Mapping):
        raise SpecError(
            'encode must be a dict from column to "one-hot", "index", a list of values or hy.Categories(…), got '
            f"{shown(encode)}"
        )
    inputs_columns, targets_columns = dict.fromkeys(_flat(inputs)), dict.fromkeys(_flat(targets))
    used = inputs_columns | targets_columns
    encode = {column_name(name): how for name, how in encode.items()}
    for name in encode:
        if name not in used:
            raise SpecError(f"encode names {name!r}, which is neither a feature nor a label{closest(name, used)}")
    encodings = {name: _encoding(name, how) for name, how in encode.items()}
    for name in targets_columns:
        if name in encodings and encodings[name].other:
            raise SpecError(
                f"encode[{name!r}] has a category for other values, and {name!r} is a label: a class stands for one "
                'value; give handle_unknown="error"'
            )
    standardize = sequence(standardize)
    if isinstance(standardize, list):
        standardize = [column_name(name) for name in standardize]
        for name in standardize:
            if not isinstance(name, str) or name not in inputs_columns:
                raise SpecError(f"standardize names {shown(name)}, which is no feature{closest(name, inputs_columns)}")
            if name in encodings:
                raise SpecError(f"standardize names {name!r}, which is encoded as categories; leave out one of the two")
    elif not isinstance(standardize, bool):
        raise SpecError(f"standardize must be True, False or a list of feature columns, got {shown(standardize)}")
    keys = [] if key is None else _names("key", key)
    keys = [keys] if isinstance(keys, str) else keys
    fills = {} if impute is None else _fills(impute, inputs_columns, targets_columns, encodings)
    spec = ColumnSpec(inputs, targets, weight, validation, encodings, standardize, keys, fills)
    if not masks:
        if max_length is not None:
            raise SpecError(f"max_length = {shown(max_length)} cuts the rows of columns that ragged= names: name them")
        return spec
    return msgspec.structs.replace(
        spec,
        ragged=_ragged_inputs(masks, spec),
        max_length=msgspec.UNSET if max_length is None else whole("max_length", max_length, 1),
    )


def ragged_columns(ragged: Any) -> dict[str, str | None]:
    """Return column → name of its mask, as the user wrote it: "" where its input's name decides, None for no mask."""
    if isinstance(ragged, Mapping):
        masks = {column_name(name): None if mask is None else scalar(mask) for name, mask in ragged.items()}
        for name, mask in masks.items():
            if mask is not None and (not isinstance(mask, str) or not mask or not sendable(mask)):
                raise SpecError(
                    f"ragged[{name!r}] must be the name of its mask, or None for no mask, got {shown(mask)}"
                )
        return masks
    names = [] if ragged is None else _names("ragged", ragged)
    return dict.fromkeys([names] if isinstance(names, str) else names, "")


def _ragged_inputs(masks: Mapping[str, str | None], spec: ColumnSpec) -> dict[str, str | None]:
    """Return input → name of its mask, for the inputs that are these columns."""
    scaled = spec.standardize if isinstance(spec.standardize, list) else []
    result: dict[str, str | None] = {}
    for column, mask in masks.items():
        if column not in spec.features:
            if column in spec.labels:
                raise SpecError(f"ragged names {column!r}, a label: the rows of labels have one length; pad them")
            raise SpecError(f"ragged names {shown(column)}, which is no feature{closest(column, spec.features)}")
        for argument, others in {"encode": [*spec.encode], "impute": [*spec.impute], "standardize": scaled}.items():
            if column in others:
                raise SpecError(f"ragged names {column!r}, which {argument} names too; leave out one of the two")
        for name, columns in spec.inputs.items():
            if not isinstance(columns, str) and column in columns:
                raise SpecError(
                    f"ragged names {column!r}, which is in the list {columns!r}, a matrix of rows of one length: make "
                    f"it an input by itself, features={{{column!r}: {column!r}, …}}"
                )
            if columns == column:
                result[name] = f"{name}_mask" if mask == "" else mask
    names = [*spec.inputs, *(mask for mask in result.values() if mask is not None)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError(
            f"ragged: {twice!r} would be two inputs; give the mask another name, ragged={{column: name of its mask}}, "
            "or no mask, ragged={column: None}"
        )
    return result


def _flat(named: Mapping[str, Names]) -> list[str]:
    lists = ([names] if isinstance(names, str) else names for names in named.values())
    return list(dict.fromkeys(name for names in lists for name in names))


def _refuse_answers(features: list[str], labels: list[str]) -> None:
    """Raise SpecError where a model would read its label; an autoencoder has all its features as labels."""
    both = set(labels) & set(features)
    if both and set(features) != set(labels):
        first = next(name for name in labels if name in both)
        raise SpecError(
            f"label names {first!r}, which is a feature too, so the model would read the answer: leave it out of "
            "features. A model that reproduces its inputs has exactly these as labels; one that reads it on purpose, "
            "as a decoder does, has it as an input of its own, features={…}"
        )


def _named(argument: str, value: Any, single: str) -> dict[str, Names]:
    if isinstance(value, Mapping):
        value = {column_name(name): names for name, names in value.items()}
        for name in value:
            if not isinstance(name, str) or not name or not sendable(name):
                raise SpecError(f"{argument} has the key {name!a}: names are text")
        return {name: _names(f"{argument}[{name!r}]", names) for name, names in value.items()}
    return {single: _names(argument, value)}


def _names(argument: str, value: Any) -> Names:
    try:
        return _checked_names(argument, sequence(value))
    except SpecError:
        items = enumerate(value) if isinstance(value, (list, tuple)) else ()
        for place, item in [(argument, value), *((f"{argument}[{at}]", item) for at, item in items)]:
            if _holds_values(item):
                raise _values_refused(place, item) from None
        raise


def _checked_names(argument: str, value: Any) -> Names:
    value = [column_name(name) for name in value] if isinstance(value, list) else column_name(value)
    for name in value if isinstance(value, list) else [value]:
        if fault := unwritable(name):
            raise SpecError(f"{argument} = {value!a}: {fault}")
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(name, str) and name for name in value):
        if len(set(value)) < len(value):
            twice = min(name for name, times in Counter(value).items() if times > 1)
            raise SpecError(f"{argument} names {twice!r} twice; name each column once")
        return value
    for at, name in enumerate(value if isinstance(value, list) else []):
        if not isinstance(name, str):
            raise SpecError(
                f"{argument}[{at}] = {shown(name)}: names of columns are text; give {shown(name)!r} perhaps"
            )
        if not name:
            raise SpecError(f"{argument}[{at}] = '': a name must have at least one character; rename the column")
    raise SpecError(f"{argument} must be the name of a column or a list of such names, got {shown(value)}")


def _holds_values(item: Any) -> bool:
    """Whether it is a frame, a column of one, or an array of something other than text."""
    kind = getattr(getattr(item, "dtype", None), "kind", "")
    return bool(getattr(item, "shape", ())) and (hasattr(item, "iloc") or kind not in ("U", "O"))


def _values_refused(argument: str, values: Any) -> SpecError:
    """Return the error about values, `df["y"]` for example, in the place of their name."""
    name = column_name(getattr(values, "name", None))
    names = list(values.columns) if hasattr(values, "columns") else name
    advice = shown(names) if isinstance(names, (str, list)) else "the name of the column that has them"
    return SpecError(
        f"{argument} must be the name of a column or a list of such names, got values, a {type(values).__name__} of "
        f"shape {tuple(values.shape)}: give {advice}"
    )


def _encoding(name: str, how: Any) -> Encoding:
    if isinstance(how, Categories):
        return Encoding(how.kind, how.values, how.min_frequency if how.handle_unknown == "other" else None)
    kind: Literal["one-hot", "index"] = "one-hot"
    values = sequence(how)
    if isinstance(values, str) and values in ("one-hot", "index"):
        return Encoding("one-hot" if values == "one-hot" else "index")
    if isinstance(how, tuple) and len(how) == 2 and isinstance(how[0], str) and how[0] == "index":
        kind, values = "index", sequence(how[1])
    if not isinstance(values, list):
        raise SpecError(
            f'encode[{name!r}] must be "one-hot", "index", a list of values, ("index", list) or hy.Categories(…), got '
            f"{shown(how)}"
        )
    return Encoding(kind, _values(f"encode[{name!r}]", values))


def _values(argument: str, value: Any) -> list[Value]:
    """Return the categories that the user lists, each once."""
    values = sequence(value)
    if not isinstance(values, list) or not values or not all(isinstance(each, Value) for each in values):
        raise SpecError(
            f"{argument} must be a list of at least one value, each a text, a number or a boolean, got {shown(value)}"
        )
    for each in values:
        if isinstance(each, float) and not abs(each) <= LARGEST:
            raise SpecError(
                f"{argument} = {shown(value)}: {each} is no category: missing values are filled by impute=, and other "
                "floating-point values must be ones that float32 can hold"
            )
    if len({isinstance(each, str) for each in values}) > 1:
        raise SpecError(f"{argument} = {shown(value)}: text and numbers; a column has one type: give values of it")
    if len(set(values)) < len(values):
        raise SpecError(f"{argument} = {shown(value)}: a value is there twice; name each once")
    return values


def _fills(
    impute: Any, features: Collection[str], labels: Collection[str], encodings: Mapping[str, Encoding]
) -> dict[str, Fill]:
    """Return column → what stands for its missing values."""
    if not isinstance(impute, Mapping):
        raise SpecError(
            f'impute must be a dict from feature to "mean", "most_frequent" or a value, got {shown(impute)}'
        )
    fills = {}
    for name, how in {column_name(name): how for name, how in impute.items()}.items():
        if name in labels and name not in features:
            raise SpecError(f"impute names {name!r}, a label, which is never filled: drop the rows that lack it")
        if name not in features:
            raise SpecError(f"impute names {shown(name)}, which is no feature{closest(name, features)}")
        fills[name] = _fill(f"impute[{name!r}]", how, encodings.get(name))
    return fills


def _fill(argument: str, how: Any, encoding: Encoding | None) -> Fill:
    value = scalar(how)
    if isinstance(value, str) and value in ("mean", "most_frequent"):
        if (value == "mean") == (encoding is None):
            return Fill("mean" if value == "mean" else "most_frequent")
        raise SpecError(
            f"{argument} = {value!r}: categories have no mean, and only the values of categories are counted; give "
            '"mean" or a number for numbers, "most_frequent" or ("constant", value) for columns that encode= names'
        )
    constant = isinstance(how, tuple) and len(how) == 2 and isinstance(how[0], str) and how[0] == "constant"
    value = scalar(how[1]) if constant else value
    number = isinstance(value, (bool, int, float)) and (encoding is not None or abs(value) <= LARGEST)
    allowed = number or (constant and encoding is not None and isinstance(value, str))
    if not allowed or (isinstance(value, float) and not math.isfinite(value)) or unwritable(value):
        if not constant and encoding is not None and isinstance(value, str) and not unwritable(value):
            raise SpecError(f'{argument} = {value!r}: for a category that is text give ("constant", {value!r})')
        raise SpecError(
            f'{argument} must be "mean" or a number that float32 can hold, or where encode= makes categories of the '
            f'column "most_frequent" or ("constant", value), got {shown(how)}'
        )
    if encoding is not None and encoding.values is not None and not encoding.other and value not in encoding.values:
        raise SpecError(f"{argument} = {shown(value)} is none of the values that encode= lists for the column")
    return Fill("constant", value)
