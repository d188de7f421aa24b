"""One task of a cluster: it encodes the rows of one partition of a DataFrame and writes them as one segment.

It runs in the cluster's workers and knows nothing of the cluster: it takes a number and record batches, and returns a
`TaskReport`, which is all that the driver ever sees.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import pyarrow as pa

from hopyard.data.encoding.encoder import Encoder, RowOrigin
from hopyard.data.encoding.exact_sums import ExactSums, PackedSums
from hopyard.data.encoding.extremes import Extremes
from hopyard.data.encoding.faults import Fault
from hopyard.data.encoding.finalize import is_measured, measure
from hopyard.data.encoding.schema import infer_fields
from hopyard.data.encoding.transform import Transform, transformed, validation_column
from hopyard.data.manifest import Field, Value
from hopyard.data.options import ColumnSpec
from hopyard.data.partitions.builder import vocabularies
from hopyard.data.rows.copies import Copies
from hopyard.data.rows.names import Names, added, name_rows, unsigned, width
from hopyard.data.shared.segments import Segment, Writer
from hopyard.data.shared.storage import TaskFile, reaching, shared_directory
from hopyard.errors import SpecError
from hopyard.formats.arrow import Array
from hopyard.formats.vectors import lists

PROBE = "probe"
"""End of the name of a file that the driver writes first: a worker that does not see it writes nothing."""


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a task to the driver."""

    number: int
    """The number of the partition of the DataFrame."""
    host: str
    rows: int = 0
    segment: Segment | None = None
    fields: list[Field] | None = None
    """The fields inferred from its first batch; None when it had no rows."""
    faults: dict[str, Fault] = {}
    extremes: Extremes = msgspec.field(default_factory=Extremes)
    moments: dict[str, PackedSums] = {}
    sum: str = "0"
    """The sum of the names of its rows, before copies were spread, in hexadecimal."""
    copies: bytes | None = None
    """How many rows each name has, from rows.copies.Copies; None: too many names, or a key."""
    distinct: bytes = b""
    """The first words of names, which decide where rows go, as rows.names.Distinct packs them."""
    others: bytes = b""
    """Their second words, likewise."""
    values: dict[str, list[Value]] = {}
    """The values of the columns to be encoded, from `WriteTask.values`."""
    counts: dict[str, list[int]] = {}
    """For columns that are counted: how many training rows have each of these values; the last number is of those whose
    value is missing."""


@dataclass(frozen=True, slots=True)
class CopiesFile:
    """The file of a table of `first_copies`, which is too large to be sent to each task: how many names and tasks it
    has."""

    name: str
    names: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the rows of a DataFrame are drawn.

    Attributes:
        copies: how copies of rows are spread; None: they are not.
        by_content: whether rows are drawn by all that they hold, not by their features.
    """

    copies: CopiesFile | None = None
    by_content: bool = False


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The work on each partition of one DataFrame; sent to the workers by pickle.

    Attributes:
        url: that of the folder for segments.
        token: the prefix of the file names of this materialisation.
        spec: the columns, with the values of all vocabularies.
        partitions: how many the data set has.
        fraction: share of the rows that validate; 1: all of them.
        seed: decides which rows validate.
        code: the transform's pickle; None: there is none.
        what: names the DataFrame, for messages: "Spark partition {} of validation=".
        drawing: how rows are drawn.
    """

    url: str
    token: str
    spec: ColumnSpec
    partitions: int
    fraction: float
    seed: int
    code: bytes | None
    what: str
    drawing: Drawing = Drawing()

    def run(self, number: int, batches: Iterable[Any]) -> TaskReport:
        """Encodes all batches of partition `number` and writes them to one segment."""
        name = f"{self.token}-{number:05d}-{secrets.token_hex(6)}.seg"
        with TaskFile(self.url, name, f"{self.token}-{PROBE}") as file:
            return self._write(file, number, batches)

    def _write(self, file: TaskFile, number: int, batches: Iterable[Any]) -> TaskReport:
        encoder: Encoder | None = None
        moments: dict[str, ExactSums] = {}
        copies, row, extremes = self.copies_of(number), 0, Extremes()
        for batch, origin in blocks(self, number, batches):
            if encoder is None:
                fields = infer_fields(batch, self.spec, str(origin))
                encoder = Encoder(fields, vocabularies(self.spec))
                writer = Writer(fields, self.partitions, width(self.spec), lambda chunk: file.write([chunk.data]))
                measured = [at for at, field in enumerate(fields) if any(map(is_measured, field.columns))]
            raw = encoder.raw(batch, origin)
            row += batch.num_rows
            if encoder.faults:
                continue  # only to count them all
            raw = unsigned(raw)
            names = copies.take(name_rows(batch, self.spec, str(origin)))
            is_validation = self.validation_rows(batch, origin, names)
            extremes.take(fields, raw, is_validation)
            for at in measured:
                measure(moments, fields, at, raw[at] if is_validation is None else raw[at][~is_validation])
            writer.take(raw, names, is_validation)
        report = TaskReport(
            number=number,
            host=socket.gethostname(),
            rows=row,
            extremes=extremes,
            copies=copies.packed(),
            distinct=copies.distinct.packed(),
            others=copies.others.packed(),
        )
        if encoder is None:
            return report
        if encoder.faults:
            return msgspec.structs.replace(
                report,
                fields=encoder.fields,
                faults=encoder.faults,
                copies=None,  # the driver has an error to raise, and need not know them
            )
        writer.flush()
        sums = [f"{total:x}" for total in writer.sums]
        return msgspec.structs.replace(
            report,
            fields=encoder.fields,
            segment=Segment(file.name, writer.bytes, writer.chunks, writer.digests(), sums, writer.values),
            moments={name: sums.packed() for name, sums in moments.items()},
            sum=f"{added(*writer.sums) if self.drawing == Drawing() else copies.total:x}",
        )

    def values(self, number: int, batches: Iterable[Any]) -> TaskReport:
        """Finds the values of the columns to be encoded, after the transform, and counts those that must be."""
        counts: dict[str, Counter[Value | None]] = {name: Counter() for name in self.spec.encode}
        counted = self.spec.counted
        planned, rows, total, copies = False, 0, 0, self.copies_of(number)
        for batch, origin in blocks(self, number, batches):
            planned = planned or bool(infer_fields(batch, self.spec, str(origin)))
            rows += batch.num_rows
            names = name_rows(batch, self.spec, str(origin))
            total = added(total, names.total())
            names = copies.take(names)
            is_validation = self.validation_rows(batch, origin, names) if counted else None
            for name, counter in counts.items():
                array = batch.column(batch.schema.get_field_index(name))
                parts = {1: array}
                if is_validation is not None:
                    parts = {1: array.filter(pa.array(~is_validation)), 0: array.filter(pa.array(is_validation))}
                for weight, part in parts.items():
                    for entry in part.value_counts().to_pylist():
                        value = entry["values"]
                        counter[value if is_category(value) else None] += weight * entry["counts"]
        values = {name: [value for value in counter if value is not None] for name, counter in counts.items()}
        return TaskReport(
            number=number,
            host=socket.gethostname(),
            rows=rows,
            sum=f"{total:x}",
            copies=copies.packed(),
            distinct=copies.distinct.packed(),
            others=copies.others.packed(),
            values=values,
            counts={name: [counts[name][value] for value in (*values[name], None)] for name in counted},
        )

    def copies_of(self, number: int) -> Copies:
        """Return the Copies of partition `number`."""
        file = self.drawing.copies
        if file is None or number >= file.tasks:  # a partition that was not there before; the driver sees that
            return Copies(by_content=self.drawing.by_content)
        folder, line = shared_directory(self.url), 8 * file.names
        with reaching(self.url, "read"):
            known, first = (folder.range(file.name, at * line, (at + 1) * line) for at in (0, number + 1))
        return Copies((np.frombuffer(known, "<u8").astype(np.uint64), np.frombuffer(first, "<u8").astype(np.uint64)))

    def validation_rows(self, batch: Any, origin: RowOrigin, names: Names) -> Array | None:
        """Return which rows of a batch validate, as a Boolean array of shape (rows,); None: none."""
        if self.fraction >= 1:
            return np.ones(len(names), np.bool_)
        if self.fraction:
            return names.validates(self.seed, self.fraction)
        return None if self.spec.validation is None else validation_column(batch, self.spec.validation, origin)


def is_category(value: Any) -> bool:
    """Whether a value is neither null nor NaN: these are missing, and where nothing stands for them, faults, which the
    job that writes the rows counts."""
    return value is not None and value == value  # noqa: PLR0124


def blocks(task: WriteTask, number: int, batches: Iterable[Any]) -> Iterator[tuple[Any, RowOrigin]]:
    """Yield the batches that have rows, with vectors as lists, after the transform."""
    name = task.what.format(number)
    transform = None if task.code is None else _loaded(task.code)
    rows_read = row = 0
    for incoming in batches:
        for part in lists(incoming):
            batch, origin = part, RowOrigin(name, row, transform is not None)
            if transform is not None:
                batch = transformed(transform, part, f"{name}, rows from {rows_read}")
            rows_read += part.num_rows
            if batch.num_rows:
                yield batch, origin
            row += batch.num_rows


def _loaded(code: bytes) -> Transform:
    try:
        transform: Transform = cloudpickle.loads(code)
    except ImportError as error:
        raise SpecError(
            f"transform: host {socket.gethostname()} cannot import what it needs ({error}); install it on the "
            f"executors, send it with spark.addArtifacts or addPyFile, or import it inside the function"
        ) from error
    return transform
