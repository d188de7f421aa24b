"""Values that cannot be trained on: how many rows of each column have some, and what to do about them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hopyard.data.encoding.schema import FLOATS
from hopyard.data.manifest import Column, Field
from hopyard.errors import DataError


class Fault(msgspec.Struct):
    """Values of one column that are null, NaN, infinite or beyond float32."""

    count: int
    first: str
    ragged: bool = False
    """True if rows without values are faults."""


def listed(faults: Mapping[str, Fault]) -> str:
    """Return a line for each column with bad values."""
    return "\n".join(
        f"  column {name!r}: {fault.count} of its rows {'are empty, or ' if fault.ragged else ''}hold null, NaN, "
        f"infinity or more than float32 can; "
        f"the first is {fault.first}"
        for name, fault in faults.items()
    )


def check(faults: Mapping[str, Fault], fields: list[Field]) -> None:
    """Raise DataError naming every column of these fields with bad values, if there are any."""
    if not faults:
        return
    columns = {column.name: column for field in fields for column in field.columns}
    hints = [hint for field in fields for column in field.columns if (hint := _fill_hint(column, field, faults))]
    fill = f"fill null and NaN of features by impute={{{', '.join(dict.fromkeys(hints))}}}, or " if hints else ""
    raise DataError(
        f"the data holds values that cannot be trained on:\n{listed(faults)}\n"
        f"{fill}drop or fill such values before, or with transform=, for example, to drop those of "
        f"{next(iter(faults))!r},\n"
        f"  transform=lambda batch: batch.filter({_good(columns[next(iter(faults))])})"
    )


def _fill_hint(column: Column, field: Field, faults: Mapping[str, Fault]) -> str:
    """Return what impute= may say of a column with bad values; "": nothing that helps."""
    number = not column.shape and (field.matrix or field.raw in FLOATS)
    if column.name not in faults or field.role != "inputs" or column.impute or not (column.encode or number):
        return ""
    value = '"?"' if "string" in column.type else "0"
    return f"{column.name!r}: " + (f'"most_frequent" or ("constant", {value})' if column.encode else '"mean" or 0')


def _good(column: Column) -> str:
    """Return the Python expression for the rows of a batch where a column has good values."""
    kind, values = column.type.rpartition(":")[0], f"batch[{column.name!r}]"
    if kind == "double":
        return f"pyarrow.compute.less_equal(pyarrow.compute.abs({values}), 3.4e38)"
    if kind in ("float", "halffloat"):
        return f"pyarrow.compute.is_finite({values})"
    if not column.shape or "binary" in kind:
        return f"pyarrow.compute.is_valid({values})"
    row = "bool(row and (numpy.abs(numpy.array(row, float)) <= 3.4e38).all())"
    return f"pyarrow.array([{row} for row in {values}.to_pylist()])"
