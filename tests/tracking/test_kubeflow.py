"""What a TrainJob gets of a run, and how it is posted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hopyard.core.runs.events import Closed, Done, Finished, Interrupted, Line
from hopyard.core.runs.machine import Machine, fold
from hopyard.driver.runs.run import Run
from hopyard.store.layout import Layout
from hopyard.tracking import kubeflow
from hopyard.tracking.follower import News, Refused
from jobs import journal, select
from trainers import Trainer, invalid, trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return select(tmp_path_factory.mktemp("kubeflow") / "run")


@pytest.fixture(scope="module")
def lines(run: Run) -> list[Line]:
    return journal(run.directory)


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Trainer]:
    with trainer(tmp_path / "server") as server:
        yield server


def status_of(machine: Machine, status: str = "running", at: float = 1_790_000_000.0) -> dict[str, Any]:
    body = json.loads(kubeflow.body(machine, status, at))
    assert invalid(body) == ""
    return dict(body["trainerStatus"])


def update(environ: Mapping[str, str], lines: list[Line]) -> None:
    kubeflow.connect("", Layout(Path()), environ).update(News((), fold(lines), "completed", 0.0))


def metrics_of(status: dict[str, Any]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


def test_progress_grows_with_the_journal_and_is_100_at_its_end_only(lines: list[Line]) -> None:
    machine, percents = None, []
    for line in lines:
        machine = fold([line], machine)
        percents.append(status_of(machine, machine.status)["progressPercentage"])
    assert percents[0] == 0 and percents[-1] == 100
    assert all(before <= after for before, after in pairwise(percents))
    assert 100 not in percents[:-1] and len(set(percents)) > 10


def test_the_metrics_are_those_of_the_best_trial(run: Run, lines: list[Line]) -> None:
    metrics = metrics_of(status_of(fold(lines), "completed"))
    best = run.best
    last = max(best.history)
    assert metrics.pop("best_val_loss") == str(best.metrics["val_loss"])
    assert (metrics.pop("trial"), metrics.pop("epoch")) == (str(best.id), str(last))
    assert metrics == {name: str(value) for name, value in best.history[last].items()}


def test_before_the_first_epoch_there_are_no_metrics(lines: list[Line]) -> None:
    status = status_of(fold(lines[:1]), "running", lines[0].at)
    assert status["metrics"] == [] and "estimatedRemainingSeconds" not in status
    assert status["lastUpdatedTime"].startswith("20") and status["lastUpdatedTime"].endswith("+00:00")


def test_seconds_left_are_estimated_while_the_run_trains(lines: list[Line]) -> None:
    first = next(number for number, line in enumerate(lines) if isinstance(line, Done))
    assert status_of(fold(lines[: first + 1]))["estimatedRemainingSeconds"] >= 1
    assert status_of(fold(lines), "completed")["estimatedRemainingSeconds"] == 0


def test_of_an_interrupted_run_nobody_knows_how_long_it_takes(lines: list[Line]) -> None:
    half = lines[: len(lines) // 2]
    machine = fold([*half, Interrupted(at=half[-1].at, reason="Ctrl-C")])
    status = status_of(machine, "interrupted")
    assert 0 < status["progressPercentage"] < 100


def test_a_run_that_ends_before_its_last_trial_is_complete(lines: list[Line]) -> None:
    half = lines[: len(lines) // 2]
    at = half[-1].at
    machine = fold([*half, Closed(at=at, reason="goal"), Finished(at=at, status="completed")])
    assert status_of(machine, "completed")["progressPercentage"] == 100


def test_names_numbers_and_counts_stay_within_the_limits(lines: list[Line]) -> None:
    machine = fold(lines)
    for trial in machine.trials.values():
        trial.history[max(trial.history)] |= {f"{number}{'漢' * 80}": math.nan for number in range(300)}
    status = status_of(machine, "completed")
    assert len(status["metrics"]) == kubeflow.METRICS
    assert status["metrics"][-1]["value"] == "nan"
    assert len(kubeflow.body(machine, "completed", 0.0)) < 1 << 16


def test_a_post_has_the_token_that_is_in_the_file_now(played: Trainer, lines: list[Line]) -> None:
    update(played.environ, lines)
    played.accepted = "second"
    with pytest.raises(ConnectionError, match=r"403: .*Forbidden"):
        update(played.environ, lines)
    played.write("second")
    update(played.environ, lines)
    assert [status["progressPercentage"] for status in played.statuses] == [100, 100] and played.refused == 1


def test_a_trainjob_that_is_gone_is_final(played: Trainer, lines: list[Line]) -> None:
    played.answer = lambda handler: handler.send(404, {"message": "Train job \x1b[31mnot found"})
    with pytest.raises(Refused, match=r"404: .*Train job") as refused:
        update(played.environ, lines)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 307 Else\r\nLocation: https://else/\r\n\r\n"])
def test_other_answers_may_pass(played: Trainer, lines: list[Line], answer: bytes) -> None:
    def say(handler: Any) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    played.answer = say
    with pytest.raises(OSError, match=str(played.server.server_address[1])):
        update(played.environ, lines)
    assert played.posts == 1


def test_a_server_of_another_authority_gets_no_token(played: Trainer, lines: list[Line], tmp_path: Path) -> None:
    with trainer(tmp_path / "other") as other:
        environ = {**played.environ, kubeflow.AUTHORITY: other.environ[kubeflow.AUTHORITY]}
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            update(environ, lines)
    assert played.posts == 0


@pytest.mark.parametrize(
    ("environ", "match"),
    [
        ({kubeflow.URL: "https://trainer/"}, f"{kubeflow.AUTHORITY}, {kubeflow.TOKEN} not set"),
        ({kubeflow.URL: "http://trainer/", kubeflow.AUTHORITY: "ca", kubeflow.TOKEN: "t"}, "https://"),
    ],
)
def test_an_environment_without_all_that_a_post_needs(environ: dict[str, str], match: str) -> None:
    with pytest.raises(Refused, match=match):
        kubeflow.connect("", Layout(Path()), environ)
