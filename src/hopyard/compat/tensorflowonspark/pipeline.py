"""TFEstimator and TFModel: a `train_fn(args, ctx)` on a cluster, and its SavedModel, in a pyspark.ml Pipeline.

Each Param has a mixin of TensorFlowOnSpark's name; `Namespace` has arguments of the user's own.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters

from hopyard.compat.tensorflowonspark import TFCluster, util
from hopyard.compat.tensorflowonspark.scoring import Kinds, Scoring, column_type
from hopyard.errors import SpecError
from hopyard.sparkapi.dataframe import mapped, narrowed
from hopyard.sparkapi.tasks import report_each
from hopyard.text import shown

Kind = TypeVar("Kind", bound=type)


class TFTypeConverters:
    """Type converters that pyspark.ml lacks."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """Return a dict. Raises TypeError, as the converters of pyspark.ml do."""
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"must be a dict, got {shown(value)}")


def _has(param: str, doc: str, converter: Callable[[Any], Any], suffix: str = "") -> Callable[[Kind], Kind]:
    """Gives a class a Param, with its setter and getter. `suffix`: of their names; "": that of the class, HasSuffix."""

    def decorate(kind: Kind) -> Kind:
        end = suffix or kind.__name__.removeprefix("Has")

        def set_it(self: Any, value: Any) -> Any:
            return self._set(**{param: value})

        def get_it(self: Any) -> Any:
            return self.getOrDefault(param)

        setattr(kind, param, Param(Params._dummy(), param, doc, converter))
        for name, function, verb in ((f"set{end}", set_it, "Sets"), (f"get{end}", get_it, "Gives")):
            function.__name__ = name
            function.__qualname__ = f"{kind.__qualname__}.{name}"
            function.__doc__ = f"{verb} `{param}`: {doc}."
            setattr(kind, name, function)
        return kind

    return decorate


@_has("batch_size", "rows of a batch", TypeConverters.toInt)
class HasBatchSize(Params):
    """batch_size."""


@_has("cluster_size", "tasks of the cluster, of all roles", TypeConverters.toInt)
class HasClusterSize(Params):
    """cluster_size."""


@_has("epochs", "times that all rows are fed", TypeConverters.toInt)
class HasEpochs(Params):
    """epochs."""


@_has("grace_secs", "seconds to wait for tasks without a warning, once all was fed", TypeConverters.toInt)
class HasGraceSecs(Params):
    """grace_secs."""


@_has("input_mapping", "column of the DataFrame → tensor", TFTypeConverters.toDict)
class HasInputMapping(Params):
    """input_mapping."""


@_has("input_mode", "InputMode.SPARK: Spark feeds the rows", TypeConverters.toInt)
class HasInputMode(Params):
    """input_mode."""


@_has("master_node", "role of the task that leads, for example chief", TypeConverters.toString)
class HasMasterNode(Params):
    """master_node."""


@_has("model_dir", "where checkpoints are", TypeConverters.toString)
class HasModelDir(Params):
    """model_dir."""


@_has(
    "driver_ps_nodes",
    "whether parameter servers are to be beside the driver",
    TypeConverters.toBoolean,
    suffix="DriverPSNodes",
)
@_has("num_ps", "parameter servers among the tasks", TypeConverters.toInt)
class HasNumPS(Params):
    """num_ps and driver_ps_nodes."""


@_has("output_mapping", "tensor → column of the new DataFrame", TFTypeConverters.toDict)
class HasOutputMapping(Params):
    """output_mapping."""


@_has("protocol", "network protocol of TensorFlow: grpc", TypeConverters.toString)
class HasProtocol(Params):
    """protocol."""


@_has("readers", "threads that read", TypeConverters.toInt)
class HasReaders(Params):
    """readers."""


@_has("steps", "most steps to train", TypeConverters.toInt)
class HasSteps(Params):
    """steps."""


@_has("tensorboard", "whether a TensorBoard is started", TypeConverters.toBoolean)
class HasTensorboard(Params):
    """tensorboard."""


@_has("tfrecord_dir", "where TFRecord files are", TypeConverters.toString)
class HasTFRecordDir(Params):
    """tfrecord_dir."""


@_has("export_dir", "where the SavedModel is", TypeConverters.toString)
class HasExportDir(Params):
    """export_dir."""


@_has("signature_def_key", "which signature of the SavedModel", TypeConverters.toString)
class HasSignatureDefKey(Params):
    """signature_def_key."""


@_has("tag_set", "tags of the SavedModel's graph, comma separated", TypeConverters.toString)
class HasTagSet(Params):
    """tag_set."""


class Namespace:
    """Arguments as attributes, from a dict, from argparse's or another Namespace, or from a command line (`argv`)."""

    argv: list[str] | None = None

    def __init__(self, d: Any) -> None:
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, Mapping):
            self.__dict__.update(d)
        elif isinstance(d, (argparse.Namespace, Namespace)):
            self.__dict__.update(vars(d))
        else:
            raise SpecError(f"Namespace(…) must be given a dict, a Namespace or a list of arguments, got {shown(d)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in sorted(self.__dict__.items()))})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Namespace, argparse.Namespace)):
            return vars(self) == vars(other)
        return NotImplemented


class TFParams(Params):
    """Params with `args`, arguments of the user's own, beside them."""

    args: Any = None

    def merge_args_params(self) -> Namespace:
        """Return a copy of `args` in which each Param that has a value, also by default, has that."""
        merged = copy.copy(self.args)
        for param in self.params:
            if self.isDefined(param):
                setattr(merged, param.name, self.getOrDefault(param))
        return Namespace(merged)


class TFEstimator(
    Estimator["TFModel"], TFParams, HasInputMapping, HasClusterSize, HasNumPS, HasInputMode, HasMasterNode, HasProtocol,
    HasGraceSecs, HasTensorboard, HasModelDir, HasExportDir, HasTFRecordDir, HasBatchSize, HasEpochs, HasReaders,
    HasSteps,
):  # fmt: skip
    """Trains by feeding the columns of `input_mapping` to a cluster.

    In `train_fn(args, ctx)`, `ctx.get_data_feed(input_mapping=args.input_mapping)` gives the rows, and `args` has the
    arguments and all Params. It writes a SavedModel to `args.export_dir`, which the TFModel opens.

    Args:
        train_fn: the `map_fun` of the cluster.
        tf_args: a dict, Namespace or command line.
        export_fn: for TensorFlow 1; refused with TensorFlow 2.
    """

    train_fn: Callable[[Any, Any], Any] | None = None
    export_fn: Callable[[Any], Any] | None = None

    def __init__(
        self, train_fn: Callable[[Any, Any], Any], tf_args: Any, export_fn: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__()
        self.train_fn = train_fn
        self.export_fn = export_fn
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            cluster_size=1,
            num_ps=0,
            driver_ps_nodes=False,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
            protocol="grpc",
            tensorboard=False,
            model_dir=None,
            export_dir=None,
            tfrecord_dir=None,
            batch_size=100,
            epochs=1,
            readers=1,
            steps=1000,
            grace_secs=30,
        )

    def _fit(self, dataset: Any) -> TFModel:
        """Raise SpecError for Params with wrong values, and what the cluster raises."""
        assert self.train_fn is not None
        if self.export_fn is not None:
            raise SpecError(
                "export_fn is of TensorFlow 1: export in train_fn, compat.export_saved_model(model, dir, chief)"
            )
        args: Any = self.merge_args_params()
        columns = sorted(args.input_mapping)
        if not columns:
            raise SpecError('input_mapping is empty: setInputMapping({"column": "tensor"}) says what is fed')
        rows = narrowed(dataset, columns, "the DataFrame")
        cluster = TFCluster.run(
            dataset.sparkSession.sparkContext,
            self.train_fn,
            self.args.argv or args,
            args.cluster_size,
            args.num_ps,
            args.tensorboard,
            TFCluster.InputMode.SPARK,
            driver_ps_nodes=args.driver_ps_nodes,
            master_node=args.master_node,
        )
        with cluster.stopped_by_errors():
            cluster.train(rows, args.epochs)
            cluster.shutdown(grace_secs=args.grace_secs)
        return self._copyValues(TFModel(self.args))


class TFModel(
    Model, TFParams, HasInputMapping, HasOutputMapping, HasBatchSize, HasModelDir, HasExportDir, HasSignatureDefKey,
    HasTagSet,
):  # fmt: skip
    """A SavedModel: `transform(df)` gives the columns that `output_mapping` names, and no others.

    Each Python worker of Spark opens it once. Numbers become double or bigint, further dimensions arrays.

    Args:
        tf_args: a dict, Namespace or command line.
    """

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            output_mapping={},
            batch_size=100,
            model_dir=None,
            export_dir=None,
            signature_def_key=None,
            tag_set=None,
        )

    def _transform(self, dataset: Any) -> Any:
        """Lazy, but for one task that opens the model to see the types of its outputs."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema

        args: Any = self.merge_args_params()
        for name in ("input_mapping", "output_mapping", "export_dir"):
            if not getattr(args, name):
                raise SpecError(
                    f"{name} is not set: a TFModel needs all of input_mapping, output_mapping and export_dir"
                )
        scoring = Scoring(
            export_dir=os.fspath(args.export_dir),
            tags=tuple((args.tag_set or "serve").split(",")),
            key=args.signature_def_key or "serving_default",
            inputs=tuple(sorted(args.input_mapping.items())),
            outputs=tuple(sorted(args.output_mapping.items())),
            batch_size=args.batch_size,
            num_gpus=getattr(args, "num_gpus", 1),
        )
        rows = narrowed(dataset, [column for column, _ in scoring.inputs], "the DataFrame")
        kinds = _kinds(scoring, dataset.sparkSession.range(0, 1, 1, 1), look=False)
        if any(rank < 0 for _, rank in kinds):
            kinds = _kinds(scoring, rows.limit(1), look=True)
        columns = [column for _, column in scoring.outputs]
        schema = pa.schema(
            [(n, column_type(kind, max(rank, 1))) for n, (kind, rank) in zip(columns, kinds, strict=True)]
        )
        return mapped(rows, partial(Scoring.rows, scoring, schema=schema), from_arrow_schema(schema))


def _kinds(scoring: Scoring, df: Any, look: bool) -> list[tuple[str, int]]:
    """Return (dtype, number of dimensions, −1 where only rows would show it) of each output, found by one task."""
    return report_each(df, partial(Scoring.kinds, scoring, look=look), Kinds)[0].outputs


def single_node_env(args: Any) -> None:
    """Calls `util.single_node_env` for `args.num_gpus`, and makes the command line of `args` this process's."""
    argv = args if isinstance(args, list) else getattr(args, "argv", None)
    if argv:
        sys.argv = argv
    util.single_node_env(getattr(args, "num_gpus", 1))


def get_meta_graph_def(saved_model_dir: str, tag_set: str) -> Any:
    """Return the MetaGraphDef with these tags, comma separated, of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2
    from tensorflow.io import gfile

    path = f"{saved_model_dir}/saved_model.pb"
    with gfile.GFile(path, "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    for graph in saved.meta_graphs:
        if set(graph.meta_info_def.tags) == set(tag_set.split(",")):
            return graph
    available = "; ".join(",".join(graph.meta_info_def.tags) for graph in saved.meta_graphs)
    raise SpecError(f"tag_set = {tag_set!r}: {path} has the graphs {available}")


def yield_batch(iterable: Iterable[Any], batch_size: int, num_tensors: int = 1) -> Iterator[list[list[Any]]]:
    """Yield rows as lists of columns, `batch_size` of them at a time; the last may be shorter."""
    columns: list[list[Any]] = [[] for _ in range(num_tensors)]
    for row in iterable:
        for column, value in zip(columns, row, strict=False):
            column.append(value)
        if len(columns[0]) >= batch_size:
            yield columns
            columns = [[] for _ in range(num_tensors)]
    if columns[0]:
        yield columns
