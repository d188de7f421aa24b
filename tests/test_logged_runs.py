"""What recipes log in real runs: the same points in the journal whatever workers, groups and losses there are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopyard as hy
from gang_jobs import Troubled as TroubledNet
from hopyard.core.facts import Lost
from hopyard.core.runs.codec import encode
from hopyard.core.runs.events import Dispatch, Done, Histogram, LoggedValue
from hopyard.errors import PreflightError
from jobs import CONFIGS, WIDTH, Troubled, dataset, digests, journal, select

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:. workers on")]

Points = dict[tuple[int, int, int], dict[str, LoggedValue]]


class Logging(Troubled):
    """Logs in training and in validation, and in a thread of its own, as loaders may."""

    sharing_key = ""

    def __init__(self, config: dict[str, Any], ctx: Any) -> None:
        super().__init__(config)
        self._ctx = ctx

    def train(self, batch: Any) -> Any:
        sums = super().train(batch)
        self._ctx.log("loss of a batch", sums["loss"][0] / batch.rows)
        self._ctx.log("rows", batch.rows)
        self._ctx.log("weights", self.weights)
        thread = threading.Thread(target=self._ctx.log, args=("inputs", batch.inputs))
        thread.start()
        thread.join()
        return sums

    def evaluate(self, batch: Any) -> Any:
        self._ctx.log("validated", 1.0)
        return super().evaluate(batch)

    def end_epoch(self) -> None:
        self._ctx.log("ends", 1.0)


class Sharing(Logging):
    """One is built for all trials, which differ in their config nowhere: it has the context of the first."""

    sharing_key = "all"


def logging(config: dict[str, Any], ctx: Any) -> Any:
    return (Sharing if config.get("share") else Logging)(config, ctx)


def points(directory: Path) -> Points:
    """(trial, epoch, partition) → what was logged there. What was trained again has logged the same."""
    units = {}
    found: Points = {}
    for line in journal(directory):
        if isinstance(line, Dispatch):
            units[line.unit.lease] = line.unit
        elif isinstance(line, Done):
            unit = units[line.lease]
            assert line.logged.keys() == (set(unit.partitions) if unit.kind == "train" else set())
            for partition, logged in line.logged.items():
                assert found.setdefault((unit.trial, unit.epoch, partition), logged) == logged
    return found


@pytest.fixture(scope="module")
def undisturbed_points(tmp_path_factory: pytest.TempPathFactory, data_cache: Path, undisturbed: list[str]) -> Points:
    """Of a run in units of one partition, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        run = select(tmp_path_factory.mktemp("logged") / "run", logging, parallel=hy.Hopper(group="off"))
        assert digests(run) == undisturbed, "to log changes no bit"
        return points(run.directory)


def test_each_partition_has_one_point_of_each_name(undisturbed_points: Points) -> None:
    rows = [part.rows for part in dataset().prepare().train]
    assert undisturbed_points.keys() == {(t, e, p) for t in range(4) for e in range(2) for p in range(4)}
    for (_, _, partition), logged in undisturbed_points.items():
        assert {*logged} - {"ends"} == {"loss of a batch", "rows", "inputs", "weights"}, "and none of validation"
        batches = -(-rows[partition] // 16)
        assert logged["rows"] == rows[partition] / batches
        inputs, weights = logged["inputs"], logged["weights"]
        assert isinstance(inputs, Histogram) and isinstance(weights, Histogram)
        assert inputs.count == sum(inputs.counts) == rows[partition] * WIDTH
        assert weights.count == batches * WIDTH * 2
    ends = [(trial, epoch) for (trial, epoch, _), logged in undisturbed_points.items() if "ends" in logged]
    assert len(set(ends)) == len(ends) == 8, "one in the last partition of each epoch"


@pytest.mark.parametrize("group", ["auto", pytest.param(3, marks=pytest.mark.long)])
def test_however_units_are_grouped(tmp_path: Path, undisturbed_points: Points, group: Any) -> None:
    run = select(tmp_path / "run", logging, parallel=hy.Hopper(group=group))
    assert points(run.directory) == undisturbed_points


def test_when_a_worker_is_killed(tmp_path: Path, undisturbed_points: Points) -> None:
    trouble = {"at": 7, "do": "kill", "once": str(tmp_path / "once")}
    configs = [{**config, **trouble} if number == 2 else config for number, config in enumerate(CONFIGS)]
    run = select(tmp_path / "run", logging, configs, engine=hy.Local(2, devices=None))
    assert [line for line in journal(run.directory) if isinstance(line, Lost)]
    assert points(run.directory) == undisturbed_points


def test_trials_that_share_a_model_have_their_own_points(tmp_path: Path) -> None:
    """The built model has the context of one of them."""
    configs = [{"lr": 0.1, "share": True, "number": number} for number in range(2)]
    run = select(tmp_path / "run", logging, configs, epochs=1)
    alone = select(tmp_path / "alone", logging, [{**config, "share": False} for config in configs], epochs=1)
    assert len(points(run.directory)) == 8 and points(run.directory) == points(alone.directory)


def test_a_run_that_logs_nothing_has_the_lines_that_it_had(tmp_path: Path) -> None:
    run = select(tmp_path / "run", epochs=1)
    done = [line for line in journal(run.directory) if isinstance(line, Done)]
    assert done and not any(b"logged" in encode(line) for line in done)


def test_what_has_no_room_is_warned_of_once_a_trial(tmp_path: Path) -> None:
    def wide(config: dict[str, Any], ctx: Any) -> Any:
        class Wide(Troubled):
            def train(self, batch: Any) -> Any:
                for name in "abcdef":
                    ctx.log(name, batch.inputs)
                return super().train(batch)

        return Wide(config)

    with pytest.warns(UserWarning, match=r"ctx\.log: no room for 'e', 'f'\. .* 4,096 bytes") as seen:
        run = select(tmp_path / "run", wide, CONFIGS[:2])
    assert len(seen) == 1, "shown once, as any warning"
    told = [line.warnings for line in journal(run.directory) if isinstance(line, Done) and line.warnings]
    assert [len(warnings) for warnings in told] == [1, 1], "and journaled once for each trial"
    assert ", in wide" in told[0][0].place
    logged = [each for line in journal(run.directory) if isinstance(line, Done) for each in line.logged.values()]
    assert len(logged) == 2 * 2 * 4 and all([*each] == ["a", "b", "c", "d"] for each in logged)


def test_a_bad_value_is_a_fault_of_the_recipe_before_any_unit(tmp_path: Path) -> None:
    def bad(config: dict[str, Any], ctx: Any) -> Any:
        class Bad(Troubled):
            def train(self, batch: Any) -> Any:
                ctx.log("lr", "0.1")
                return super().train(batch)

        return Bad(config)

    with pytest.raises(PreflightError, match=r"ctx\.log\('lr', …\).*'0\.1'.* in train"):
        select(tmp_path / "run", bad)
    assert not any(isinstance(line, Dispatch) for line in journal(tmp_path / "run"))


def test_models_of_a_run_log_nothing_outside_of_it(tmp_path: Path) -> None:
    """Neither in prediction nor in the user's own hands, while another run trains."""
    run = select(tmp_path / "first", logging, CONFIGS[:1], epochs=1)
    own = run.best.model()

    class Nosy(Troubled):
        def train(self, batch: Any) -> Any:
            own._ctx.log("own", 1.0)
            return super().train(batch)

    other = select(tmp_path / "second", lambda config: Nosy(config), CONFIGS[:1], epochs=1)
    assert not any(line.logged for line in journal(other.directory) if isinstance(line, Done))


# ------------------------------------------------------------------------------------------ gangs


def hooked(config: dict[str, Any], ctx: Any) -> Any:
    """A net whose activations and gradients are logged by hooks of torch."""
    middle, last = torch.nn.Tanh(), torch.nn.Linear(8, 2)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), middle, last)
    middle.register_forward_hook(lambda module, inputs, output: ctx.log("activations", output))
    last.weight.register_hook(lambda gradient: ctx.log("gradient norm", gradient.norm()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    return TroubledNet(config, net, optimizer, torch.nn.functional.cross_entropy)


def fit(directory: Path, group: Any, **config: Any) -> Points:
    """What a gang of two has logged."""
    engine, parallel = hy.Local(2, devices=None), hy.Hopper(gang=2, group=group)
    run = hy.fit(hooked, config, dataset(), epochs=1, engine=engine, parallel=parallel, directory=directory)
    return points(run.directory)


def test_a_point_of_a_gang_is_that_of_all_members(tmp_path: Path) -> None:
    rows = [part.rows for part in dataset().prepare().train]
    found = fit(tmp_path / "run", 4)
    assert found.keys() == {(0, 0, partition) for partition in range(4)}
    for (_, _, partition), logged in found.items():
        activations, norm = logged["activations"], logged["gradient norm"]
        assert isinstance(activations, Histogram) and activations.count == 8 * rows[partition]
        assert isinstance(norm, float) and 0 < norm < np.inf


@pytest.mark.long
def test_the_points_of_a_gang_do_not_depend_on_groups_and_losses(tmp_path: Path) -> None:
    found = fit(tmp_path / "run", "off", rank=1, at=7, do="kill", once=str(tmp_path / "once"))
    assert (tmp_path / "once").exists() and found == fit(tmp_path / "quiet", 4)
