"""Params of pyspark.ml under the names of TensorFlowOnSpark: a mixin for each, `Namespace`, and both merged."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from hopyard.errors import SpecError
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


def _has(param: str, setter: str, doc: str, converter: Callable[[Any], Any]) -> Callable[[Kind], Kind]:
    """Gives a class a Param, with its setter and getter."""

    def decorate(kind: Kind) -> Kind:
        def set_it(self: Any, value: Any) -> Any:
            return self._set(**{param: value})

        def get_it(self: Any) -> Any:
            return self.getOrDefault(param)

        setattr(kind, param, Param(Params._dummy(), param, doc, converter))
        for name, function, verb in ((f"set{setter}", set_it, "Sets"), (f"get{setter}", get_it, "Gives")):
            function.__name__ = name
            function.__qualname__ = f"{kind.__qualname__}.{name}"
            function.__doc__ = f"{verb} `{param}`: {doc}."
            setattr(kind, name, function)
        return kind

    return decorate


@_has("batch_size", "BatchSize", "rows of a batch", TypeConverters.toInt)
class HasBatchSize(Params):
    """batch_size."""


@_has("cluster_size", "ClusterSize", "tasks of the cluster, of all roles", TypeConverters.toInt)
class HasClusterSize(Params):
    """cluster_size."""


@_has("epochs", "Epochs", "times that all rows are fed", TypeConverters.toInt)
class HasEpochs(Params):
    """epochs."""


@_has(
    "grace_secs",
    "GraceSecs",
    "seconds to wait for tasks without a warning, once all was fed",
    TypeConverters.toInt,
)
class HasGraceSecs(Params):
    """grace_secs."""


@_has("input_mapping", "InputMapping", "column of the DataFrame → tensor", TFTypeConverters.toDict)
class HasInputMapping(Params):
    """input_mapping."""


@_has("input_mode", "InputMode", "InputMode.SPARK: Spark feeds the rows", TypeConverters.toInt)
class HasInputMode(Params):
    """input_mode."""


@_has("master_node", "MasterNode", "role of the task that leads, for example chief", TypeConverters.toString)
class HasMasterNode(Params):
    """master_node."""


@_has("model_dir", "ModelDir", "where checkpoints are", TypeConverters.toString)
class HasModelDir(Params):
    """model_dir."""


@_has(
    "driver_ps_nodes",
    "DriverPSNodes",
    "whether parameter servers are to be beside the driver",
    TypeConverters.toBoolean,
)
@_has("num_ps", "NumPS", "parameter servers among the tasks", TypeConverters.toInt)
class HasNumPS(Params):
    """num_ps and driver_ps_nodes."""


@_has("output_mapping", "OutputMapping", "tensor → column of the new DataFrame", TFTypeConverters.toDict)
class HasOutputMapping(Params):
    """output_mapping."""


@_has("protocol", "Protocol", "network protocol of TensorFlow: grpc", TypeConverters.toString)
class HasProtocol(Params):
    """protocol."""


@_has("readers", "Readers", "threads that read", TypeConverters.toInt)
class HasReaders(Params):
    """readers."""


@_has("steps", "Steps", "most steps to train", TypeConverters.toInt)
class HasSteps(Params):
    """steps."""


@_has("tensorboard", "Tensorboard", "whether a TensorBoard is started", TypeConverters.toBoolean)
class HasTensorboard(Params):
    """tensorboard."""


@_has("tfrecord_dir", "TFRecordDir", "where TFRecord files are", TypeConverters.toString)
class HasTFRecordDir(Params):
    """tfrecord_dir."""


@_has("export_dir", "ExportDir", "where the SavedModel is", TypeConverters.toString)
class HasExportDir(Params):
    """export_dir."""


@_has("signature_def_key", "SignatureDefKey", "which signature of the SavedModel", TypeConverters.toString)
class HasSignatureDefKey(Params):
    """signature_def_key."""


@_has("tag_set", "TagSet", "tags of the SavedModel's graph, comma separated", TypeConverters.toString)
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
