"""Event files for tests: written by followers, read back by TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.modules.setdefault(
    "tensorboard.compat.notf", ModuleType("notf")
)  # TensorBoard would import TensorFlow, if it is here

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer  # noqa: E402
from tensorboard.context import RequestContext  # noqa: E402
from tensorboard.plugins.base_plugin import TBContext  # noqa: E402
from tensorboard.plugins.hparams import api_pb2  # noqa: E402
from tensorboard.plugins.hparams.backend_context import Context  # noqa: E402
from tensorboard.plugins.hparams.list_session_groups import Handler  # noqa: E402

from hopyard.store.layout import Layout  # noqa: E402
from hopyard.tracking.follower import Pace, follow  # noqa: E402
from hopyard.tracking.tensorboard import connect  # noqa: E402

QUICK = Pace(look=0.01, pause=0.01)


def write(directory: str | Path, target: Path | str = "", pace: Pace = QUICK) -> dict[str, bytes]:
    """Follow a run to its end, and return the files: path below the target → content."""
    layout = Layout(Path(directory))
    layout.logs.mkdir(exist_ok=True)
    follow(layout, "tensorboard", lambda: connect(str(target), layout, {}), pace)
    return content(Path(target or layout.tensorboard))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def scalars(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Return tag → (time, step, value) of a trial's folder, all of them and in the order of the file."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    return {
        tag: [(each.wall_time, each.step, each.value) for each in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def sessions(folder: Path) -> dict[str, Any]:
    """Return run of TensorBoard → what the HParams page shows of it."""
    runs = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(runs, str(folder))))
    every = [value for name, value in api_pb2.Status.items() if "STATUS" in name]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=every, slice_size=1000)
    return {group.name: group for group in Handler(RequestContext(), context, "", request).run().session_groups}
