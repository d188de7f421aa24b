"""From records to the events of TensorBoard. Pure, but for the state of what was taken.

Each trial is a run of TensorBoard, and has one file. Tags are the names of metrics, by epoch; `best/NAME`, those of the
best epoch once the trial has ended; `rung/NAME` and `logged/NAME`, by the partitions that the trial had trained. The
HParams page takes a trial's config from its first event. It finds columns by itself, so that the trials of several runs
make one table: an event that declares them (`_hparams_/experiment`) is looked for once, for all runs together.

TensorBoard expects the steps of a tag to increase, and its data server drops points that a lower step follows
(tensorboard/data/server/reservoir.rs, "Preemption"). Metrics of a later epoch therefore wait for the epochs before it.

Source: github.com/tensorflow/tensorboard, tensorboard/compat/proto/{event,summary}.proto and
tensorboard/plugins/hparams/{plugin_data.proto,metadata.py}.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from hopyard.core.runs.events import Histogram, LoggedValue
from hopyard.spec import Config
from hopyard.tracking.records import EpochEnded, Logged, OfTrial, Record, RungReached, TrialEnded, TrialStarted

VERSION = "brain.Event:2"
"""What the first event of a file must say, else TensorBoard takes steps that do not increase for a restart."""
_EMPTY = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))


@dataclass(slots=True)
class _Trial:
    """What there are events of, of one attempt of a trial."""

    start: float
    epoch: int = 0
    """The last one."""
    waiting: dict[int, EpochEnded] = field(default_factory=dict)
    """Epoch → its record, of those that wait for an earlier one."""
    best: int | None = None
    ended: bool = False


class Summaries:
    """Turns the records of a run into events."""

    def __init__(self) -> None:
        self._trials: dict[tuple[int, int], _Trial] = {}

    def take(self, record: Record) -> list[tuple[str, bytes]]:
        """Return what this record adds: (file, event). The file is a path below the run's folder."""
        if not isinstance(record, OfTrial):
            return []
        key = record.trial, record.attempt
        if isinstance(record, TrialStarted):
            self._trials[key] = _Trial(record.at)
        trial = self._trials[key]
        again = "-again" * (record.attempt > 0) + f"-{record.attempt}" * (record.attempt > 1)
        file = f"trial-{record.trial}{again}/events.out.tfevents.{int(trial.start):010d}.hopyard"
        return [(file, event.SerializeToString(deterministic=True)) for event in _events(record, trial)]


def _events(record: OfTrial, trial: _Trial) -> Iterator[Event]:
    match record:
        case TrialStarted():
            yield Event(wall_time=record.at, file_version=VERSION)
            yield _session(record.at, "session_start_info", _start(record.at, record.config))
        case Logged():
            yield _values(record.at, record.step, "logged/", record.values)
        case EpochEnded():
            trial.waiting[record.epoch] = record
            yield from _epochs(trial)
        case RungReached(metrics=metrics) if metrics:
            yield _values(record.at, record.step, "rung/", metrics)
        case TrialEnded():
            yield from _epochs(trial, to_the_end=True)
            if record.epoch not in (None, trial.best):
                trial.best = record.epoch
                yield _values(record.at, record.epoch, "best/", record.metrics)
            if not trial.ended:  # TensorBoard keeps the first end of a session
                trial.ended = True
                status = STATUS_FAILURE if record.status == "failed" else STATUS_SUCCESS
                yield _session(record.at, "session_end_info", SessionEndInfo(status=status, end_time_secs=record.at))
        case _:
            pass


def _epochs(trial: _Trial, to_the_end: bool = False) -> Iterator[Event]:
    for epoch in sorted(trial.waiting):
        if epoch > trial.epoch + 1 and not to_the_end:
            return
        trial.epoch = max(trial.epoch, epoch)
        record = trial.waiting.pop(epoch)
        yield _values(record.at, epoch, "", record.metrics)


def _values(at: float, step: int, prefix: str, values: Mapping[str, LoggedValue]) -> Event:
    drawn = {name: value for name, value in values.items() if not (isinstance(value, Histogram) and not value.count)}
    summary = Summary(value=[_value(prefix + name, value) for name, value in drawn.items()])
    return Event(wall_time=at, step=step, summary=summary)


def _value(tag: str, value: LoggedValue) -> Summary.Value:
    """Return a number, or a histogram of numbers, under this tag."""
    if not isinstance(value, Histogram):
        return Summary.Value(tag=tag, simple_value=value)
    histogram = HistogramProto(
        min=value.min,
        max=value.max,
        num=value.count,
        sum=value.sum,
        sum_squares=value.sum_squares,
        bucket_limit=value.edges()[1:],
        bucket=value.counts,
    )
    return Summary.Value(tag=tag, histo=histogram)


def _start(at: float, config: Config) -> SessionStartInfo:
    info = SessionStartInfo(start_time_secs=at)
    for name, value in config.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, (int, float)) and math.isfinite(value):  # else its JSON is refused
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = str(value)
    return info


def _session(at: float, name: str, info: SessionStartInfo | SessionEndInfo) -> Event:
    """Return an event of the HParams plugin. All of it is in the metadata of a tag, whose tensor is empty."""
    content = HParamsPluginData(**{name: info}).SerializeToString(deterministic=True)
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    metadata = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_TENSOR)
    value = Summary.Value(tag=f"_hparams_/{name}", metadata=metadata, tensor=_EMPTY)
    return Event(wall_time=at, summary=Summary(value=[value]))
