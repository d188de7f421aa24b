"""A run, and what a follower sends of it to a played server of MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api_servers import Handler
from hopyard.driver.runs.run import Run
from hopyard.store.layout import Layout
from hopyard.store.standing import status_of
from hopyard.tracking.follower import News, Pace
from hopyard.tracking.mlflow.tracker import Mlflow, connect
from hopyard.tracking.reading import Reading
from jobs import SLOW
from mlflow_server import MlflowServer

CONFIGS: list[dict[str, Any]] = [{"lr": 0.1, "a+b": 1}, {"lr": 0.03}, {"lr": 0.01, "at": 2, "do": "raise"}]
EXPERIMENT = {"MLFLOW_EXPERIMENT_NAME": "flights"}
QUICK = Pace(look=0.01, pause=0.01, longest=0.05)

DRIVER = (
    SLOW
    + """
search = hy.Configs([{"lr": 0.1 / (1 + number)} for number in range(8)])
hy.select(slow, None, dataset(), search=search, epochs=int(sys.argv[2]), metric="val_loss", mode="min",
          engine=hy.Inline(), directory=sys.argv[1], resume=True)
"""
)
"""A program that drives a run of eight trials, or goes on with it. Arguments: the directory, the epochs."""


def tracker(run: Run, played: MlflowServer, **environ: str) -> Mlflow:
    return connect(played.url, Layout(run.directory), EXPERIMENT | environ)


def news(run: Run, lines: int = 2000, until: int | None = None) -> Iterator[News]:
    """What a follower sends that reads so many lines at a time. `until`: of a run whose driver died after this one."""
    reading = Reading(Layout(run.directory))
    count = 0
    while not reading.whole:
        count += lines
        records = reading.more(lines if until is None else min(lines, lines - count + until))
        machine, last = reading.machine, reading.last
        assert machine is not None and last is not None
        reading.whole |= until is not None and count >= until
        status = status_of(machine.status, False, last) if reading.whole else "running"
        yield News(tuple(records), machine, status, last.at)


def send(run: Run, mlflow: Mlflow, lines: int = 2000) -> None:
    for each in news(run, lines):
        mlflow.update(each)


def cut(handler: Handler) -> bool:
    """End the connection instead of an answer."""
    handler.close_connection = True
    return True
