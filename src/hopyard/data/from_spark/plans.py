"""Whether a plan of a classic Spark session is one that another session would make: its text, and the files it reads.

Spark's own hash of a plan (`DataFrame.semanticHash`) is another in each JVM, as it has addresses of objects in it. The
text of a plan has none, but it hides things: rows in memory, the code of functions. So text counts only of plans that
are made of nodes which show all they do, over files. Reaches into the JVM by py4j; imports nothing of Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

from blake3 import blake3

from hopyard.data.sources.parquet import stamp
from hopyard.errors import DataError
from hopyard.sparkapi.dataframe import schema
from hopyard.sparkapi.session import is_connect

log = logging.getLogger(__name__)

_NODES = {
    "Aggregate", "Distinct", "Except", "Filter", "GlobalLimit", "Intersect", "Join", "LocalLimit", "Offset", "Project",
    "Range", "Repartition", "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union", "View", "Window",
    "WithCTE",
}  # fmt: skip
_HIDING = ("PYTHON_UDF", "SCALA_UDF", "CURRENT_LIKE", "PLAN_EXPRESSION")
"""Kinds of expressions whose text does not say what they give."""
_NOT_SEEN = re.compile(
    r"Python|InPandas|InArrow|JDBC|BatchScan|Scan hive|\bcurrent_(date|time)|\b(now|localtimestamp)\("
)
"""What says so in the text of a Connect client's plans."""
_CUT = re.compile(r"\.\.\. \d+ more field")
_STATUS = re.compile(r"path=(.*?); isDirectory=.*?length=(\d+);.*?modification_time=(\d+)")
_FIELDS = "spark.sql.debug.maxToStringFields"


def text(df: Any) -> str | None:
    """All that decides the rows of a classic DataFrame; None when it cannot be told."""
    plan = df._jdf.queryExecution().analyzed().canonicalized()
    patterns = getattr(df.sparkSession._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if any(plan.containsPattern(getattr(patterns, name)()) for name in _HIDING):
        return None
    files = []
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if name == "LogicalRelation" and (read := _files(node)) is not None:
            files.append(read)
        elif name not in _NODES or not node.deterministic():
            return None
    conf = df.sparkSession.conf
    before = conf.get(_FIELDS)
    conf.set(_FIELDS, str(1 << 30))
    try:
        said = str(plan.toString())
    finally:
        conf.set(_FIELDS, before)
    return None if _CUT.search(said) else "\0".join([said, *files])


def is_deterministic(df: Any) -> bool | None:
    """What Spark says of the plan of a classic DataFrame; None of others, of which it says nothing."""
    if not hasattr(df, "_jdf"):
        return None
    return bool(df._jdf.queryExecution().analyzed().deterministic())


def unseen(df: Any) -> bool:
    """Whether the rows of a DataFrame can be others though its plan and its files are the same: it reads what is no
    file, a database for example; runs Python code, which plans often have by name only; or asks for the time.
    """
    if is_connect(df.sparkSession):
        return _NOT_SEEN.search(df._explain_string(extended=True)) is not None
    plan = df._jdf.queryExecution().analyzed()
    patterns = getattr(df.sparkSession._jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if any(plan.containsPattern(getattr(patterns, name)()) for name in ("PYTHON_UDF", "CURRENT_LIKE")):
        return True
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if (name == "LogicalRelation" and _files(node) is None) or name.startswith(("DataSourceV2", "HiveTable")):
            return True
    return False


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))


def _files(leaf: Any) -> str | None:
    """Format, options and files of a relation; None when it is not of files that have sizes and times."""
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    location = relation.location()
    if location.getClass().getSimpleName() not in ("InMemoryFileIndex", "PrunedInMemoryFileIndex"):
        return None
    found = sorted(_STATUS.findall(location.allFiles().mkString("\n")))
    read = relation.dataSchema().json(), relation.partitionSchema().json()  # the plan's text has no names of columns
    return f"{relation.fileFormat().toString()} {relation.options().toString()} {read} {found}"


def identity(df: Any) -> str | None:
    """A digest that is equal for equal rows: of the plan, and of path, size and time of the files that it reads.

    A classic plan over files is known again in another session; any other for as long as the session's JVM lives. None
    where nobody tells: what the plan runs or reads cannot be seen, or the files cannot be asked for their time.
    """
    try:
        if unseen(df):
            return None
        plan = None if is_connect(df.sparkSession) else text(df)
        told = plan or f"{df.semanticHash()} {_jvm(df)}"
        hasher = blake3(f"{told}\0{schema(df)}".encode())
        for path in sorted(df.inputFiles()):
            hasher.update(f"{path}\0{_stamp(path, plan is not None)}\0".encode())
    except Exception as error:  # noqa: BLE001 - no public API: another Spark may lack any of it
        log.debug("the plan of the DataFrame cannot be told: %s", error)
        return None
    return str(hasher.hexdigest())


def _jvm(df: Any) -> str:
    """Names the JVM in which a hash of objects in it was made: others may give the same to something else."""
    return str(df.sparkSession.conf.get("spark.app.id", ""))


def _stamp(path: str, timed: bool) -> str:
    """Size and time of a file. Where this process has no driver for its file system: nothing, if the plan is `timed`,
    which holds both already."""
    try:
        return stamp(path)
    except (DataError, ImportError, ValueError):
        if not timed:
            raise
        return ""
