"""Searches that stop, pause and promote, with real workers: equal bits, kills, replays, budgets, bad input."""

from __future__ import annotations

import logging
import re
import signal
from functools import partial
from pathlib import Path
from statistics import correlation
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.events import DECISIONS, Closed, Dispatch, Exhausted, Granted, Paused, Proposed, Stopped
from hopyard.core.runs.machine import fold
from hopyard.driver.runs.replay import replay
from hopyard.errors import Inexact, PreflightError, RunDirectoryError, RunFailed, SpecError, UsageError
from hopyard.frameworks.linear import Linear
from hopyard.ports.searches import LearningSampler, Observation
from hopyard.search.bridge import quietly
from hopyard.search.kinds import Enqueued, enqueued, open_sampler
from hopyard.search.proposer import Proposer
from hopyard.spec import Batch
from jobs import CONFIGS, WIDTH, children, dataset, driver, gone, journal, linear, script, select

SPACE = hy.Space(lr=hy.loguniform(1e-3, 1.0))


def search(directory: Path, stop: Any = None, **more: Any) -> hy.Run:
    """`hy.select` over learning rates."""
    arguments: dict[str, Any] = {
        "search": hy.Random(8),
        "epochs": 4,
        "metric": "val_loss",
        "mode": "min",
        "engine": hy.Inline(),
        "exact": False,
    } | more
    return hy.select(linear, SPACE, dataset(), stop=stop, directory=directory, **arguments)


def outcome(run: hy.Run) -> list[tuple[Any, ...]]:
    """What must not depend on the workers."""
    return [(t.config["lr"], t.status, len(t.history), t.digest, t.reason, t.metrics) for t in run.trials]


# ------------------------------------------------------------------------------------------------ exactness


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:. workers on . cores")
@pytest.mark.parametrize(
    ("stop", "more"),
    [
        (hy.ASHA(2, sync=True), {}),
        (hy.Hyperband(2, sync=True), {"search": hy.Random(13)}),
        pytest.param(hy.Median(min_trials=1, sync=True), {}, marks=pytest.mark.long),
        pytest.param(hy.Patience(1), {"metric": "loss", "mode": "max"}, marks=pytest.mark.long),
        (hy.ASHA(2, sync=True), {"search": hy.TPE(8, batch=4)}),
        (None, {"search": hy.TPE(8, batch=4), "epochs": 2}),
    ],
    ids=["asha", "hyperband", "median", "patience", "asha-tpe", "tpe"],
)
def test_a_synchronous_search_gives_equal_bits_and_decisions_on_any_workers(
    tmp_path: Path, stop: Any, more: dict[str, Any]
) -> None:
    alone = search(tmp_path / "inline", stop, exact=True, **more)
    assert alone.status == "completed"
    assert stop is None or {trial.status for trial in alone.trials} >= {"stopped"}
    for workers in (1, 2, 3) if more == {} else (2,):
        engine = hy.Local(workers=workers, devices=None)
        found = search(tmp_path / str(workers), stop, exact=True, engine=engine, **more)
        assert outcome(found) == outcome(alone), workers


@pytest.mark.slow
def test_an_asynchronous_search_is_replayed_to_equal_bits(tmp_path: Path) -> None:
    run = search(tmp_path / "run", hy.ASHA(2), engine=hy.Local(workers=2, devices=None), search=hy.TPE(10), epochs=4)
    assert {trial.status for trial in run.trials} == {"completed", "stopped"}
    found = replay(run.directory, engine=hy.Inline())
    assert found.different == []
    assert found.states >= sum(len(trial.history) for trial in run.trials)


@pytest.mark.slow
def test_a_driver_that_is_killed_in_the_middle_of_asha_goes_on(tmp_path: Path) -> None:
    """No decision is taken a second time, and the search proposes what it would have proposed."""
    body = """
from hopyard.core.runs.events import Granted
from hopyard.driver.runs.loop import RunLoop
import os, signal

commit = RunLoop._commit

def dies(self, events):
    commit(self, events)
    if sum(trial.target > 4 for trial in self.machine.trials.values()) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)

RunLoop._commit = dies
hy.select(linear, hy.Space(lr=hy.loguniform(1e-3, 1.0)), dataset(), search=hy.TPE(12), epochs=4, metric="val_loss",
          mode="min", stop=hy.ASHA(2), engine=hy.Local(workers=2, devices=None), directory="run", exact=False)
"""
    process = driver([str(script(tmp_path / "run.py", body))], tmp_path)
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close(), process.stderr.close()  # type: ignore[union-attr]
    assert gone(children(process))
    before = journal(tmp_path / "run")
    assert not any(isinstance(line, Stopped) for line in before)
    run = hy.resume(tmp_path / "run")
    lines = journal(tmp_path / "run")
    assert lines[: len(before)] == before
    assert (run.status, len(run.trials)) == ("completed", 12)
    assert {trial.status for trial in run.trials} == {"completed", "stopped"}
    decided = [(line.trial, line.target) for line in lines if isinstance(line, Granted)]
    assert len(decided) == len(set(decided))
    _proposes_the_same(lines, hy.TPE(12))
    assert replay(run.directory, engine=hy.Inline()).different == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "kind", "reached"),
    [
        pytest.param(
            "hy.Hyperband(2, sync=True)",
            "hy.Random(13)",
            "sum(trial.target > 4 for trial in trials) >= 5",
            marks=pytest.mark.long,
        ),
        ("None", "hy.TPE(12, batch=4)", "sum(trial.ended for trial in trials) >= 6"),
    ],
    ids=["hyperband", "tpe"],
)
def test_a_driver_that_is_killed_in_the_middle_changes_nothing(
    tmp_path: Path, stop: str, kind: str, reached: str
) -> None:
    """A synchronous search resumes to what an undisturbed run gives, bit by bit."""
    body = f"""
from hopyard.driver.runs.loop import RunLoop
import os, signal

commit = RunLoop._commit

def dies(self, events):
    commit(self, events)
    trials = self.machine.trials.values()
    if {reached} and not self.machine.ended:
        os.kill(os.getpid(), signal.SIGKILL)

RunLoop._commit = dies
hy.select(linear, hy.Space(lr=hy.loguniform(1e-3, 1.0)), dataset(), search={kind}, epochs=4, metric="val_loss",
          mode="min", stop={stop}, engine=hy.Local(workers=2, devices=None), directory="run", exact=True)
"""
    process = driver([str(script(tmp_path / "run.py", body))], tmp_path)
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close(), process.stderr.close()  # type: ignore[union-attr]
    assert gone(children(process))
    before = fold(journal(tmp_path / "run"))
    assert before.open > 0 and any(trial.history for trial in before.trials.values())
    run = hy.resume(tmp_path / "run")
    names = {"hy": hy}
    undisturbed = search(tmp_path / "undisturbed", eval(stop, names), search=eval(kind, names), exact=True)
    assert run.status == undisturbed.status == "completed"
    assert outcome(run) == outcome(undisturbed)


def _proposes_the_same(lines: list[Any], search: Any) -> None:
    """Each proposal of a journal follows from what is before it alone."""
    asked = 0
    for place, line in enumerate(lines):
        if isinstance(line, Proposed):
            machine = fold(lines[:place])
            sampler = open_sampler(search, SPACE, machine.spec.seed, machine.spec.modes)
            assert isinstance(sampler, LearningSampler)
            proposal = sampler.propose(Proposer(machine, sampler, 2)._history())
            assert proposal is not None
            assert (proposal.config, proposal.count) == (line.config, line.count)
            assert proposal.attributes.keys() == line.attributes.keys()  # CMA-ES: a pickle, whose bytes may differ
            asked += 1
    assert asked


@pytest.mark.slow
@pytest.mark.parametrize("kind", [hy.TPE, hy.GP, hy.CMA])
def test_proposals_follow_from_the_journal(tmp_path: Path, kind: Any) -> None:
    run = search(tmp_path / "run", None, search=kind(14), epochs=1)
    _proposes_the_same(journal(run.directory), kind(14))
    lines = journal(run.directory)
    if kind is hy.CMA:
        assert any(line.attributes for line in lines if isinstance(line, Proposed))


# ------------------------------------------------------------------------------------------------ what comes out


def test_a_stopped_trial_can_be_the_best_at_its_best_epoch(tmp_path: Path) -> None:
    run = search(tmp_path / "run", lambda trial, history: len(history) == 2, epochs=4)
    assert run.status == "completed"
    best = run.best
    assert (best.status, best.epoch) == ("stopped", 2)
    assert best.reason == "the function of stop= said so"
    assert best.predict(dataset()).shape == (240, 2)
    assert best.model("last") is not None
    assert len(best.digest) == 64
    assert hy.load(run.directory).best.id == best.id


def test_the_users_function_gets_the_trial_and_its_history(tmp_path: Path) -> None:
    asked = []

    def stop(trial: hy.Trial, history: dict[int, dict[str, float]]) -> bool:
        asked.append((trial.id, trial.config["lr"], sorted(history), sorted(history[1])))
        return trial.id == 1

    run = search(tmp_path / "run", stop, search=hy.Random(2), epochs=3)
    metrics = ["accuracy", "loss", "val_accuracy", "val_loss"]
    rates = [trial.config["lr"] for trial in run.trials]
    assert asked == []  # it was pickled: a run has its own copies
    assert [(trial.status, len(trial.history)) for trial in run.trials] == [("completed", 3), ("stopped", 1)]
    assert rates and metrics


def test_the_greatest_accuracy_is_the_best_one(tmp_path: Path) -> None:
    """A fault of a predecessor: by "acc" it selected the worst model."""
    run = search(tmp_path / "run", hy.ASHA(2, sync=True), metric="val_accuracy", mode="max", epochs=2)
    first = {trial.id: trial.history[1]["val_accuracy"] for trial in run.trials}
    promoted = [trial.id for trial in run.trials if trial.status == "completed"]
    assert len(promoted) == 4 and min(first[n] for n in promoted) >= max(first[n] for n in first if n not in promoted)
    values = {trial.id: max(metrics["val_accuracy"] for metrics in trial.history.values()) for trial in run.trials}
    assert run.best.metrics["val_accuracy"] == max(values.values()) > min(values.values())


class Counting(Linear):
    """A Linear whose loss is the number of rows of the batch."""

    def train(self, batch: Batch) -> Any:
        return {**super().train(batch), "loss": (batch.rows**2, batch.rows)}


def counting(config: dict[str, Any]) -> Any:
    return Counting(WIDTH, 2, lr=0.1, batch_size=config["batch_size"])


def test_a_history_holds_the_mean_over_all_batches_of_all_partitions(tmp_path: Path) -> None:
    """A fault of a predecessor: it held the last batch only."""
    run = hy.select(
        counting, None, dataset(validation=0, rows=100), search=hy.Configs([{"batch_size": 16}]), epochs=2,
        metric="loss", mode="min", engine=hy.Inline(), directory=tmp_path / "run",
    )  # fmt: skip
    mean = (16 * 16 + 9 * 9) / 25  # four partitions of 25 rows: batches of 16 and 9
    assert {epoch: metrics["loss"] for epoch, metrics in run.best.history.items()} == {1: mean, 2: mean}


def test_samplers_made_anew_walk_along_no_diagonal() -> None:
    """A fault of a predecessor: two parameters, or neighbouring trials, were drawn by generators of one seed."""
    import optuna

    space = hy.Space(a=hy.uniform(0, 1), b=hy.uniform(0, 1))
    sampler = hy.Optuna(optuna.samplers.RandomSampler, 100).open(space, 0)
    history: list[Observation] = []
    while (proposal := sampler.propose(history)) is not None:
        history.append(Observation(proposal.config, "completed", {1: 0.0}, (0.0,), proposal.count, {}))
    a, b = ([each.config[name] for each in history] for name in "ab")
    for x, y in ((a, b), (a[:-1], a[1:]), (a[:-1], b[1:]), (b[:-1], b[1:])):
        assert abs(correlation(x, y)) < 0.3


def breaks(trial: hy.Trial, history: dict[int, dict[str, float]]) -> bool:
    if trial.id == 0 and len(history) == 1:
        raise KeyError("no such epoch")
    return len(history) == 2


def test_a_function_that_raises_lets_that_trial_go_on_and_every_view_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: it was not asked any more, so which trials it stopped depended on time; and no report had the error."""
    run = search(tmp_path / "run", breaks, search=hy.Random(2), epochs=4)
    assert [(trial.status, len(trial.history)) for trial in run.trials] == [("stopped", 2)] * 2
    text, place = "KeyError: 'no such epoch'", "test_search.py, line "
    assert f"trial 0: {text}; stop= raised it" in caplog.text and place in caplog.text
    report = hy.load(run.directory).report()
    assert f"{text}; stop= raised it" in report and f"({place}" in report
    assert text in capsys.readouterr().err.split("warning: ")[1]
    (granted,) = [line for line in journal(run.directory) if isinstance(line, Granted) and line.trial == 0]
    assert granted.reason.startswith(f"stop= raised {text} ({place}")


def test_answers_of_a_wrong_type_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = search(tmp_path / "run", lambda trial, history: "no", search=hy.Random(2), epochs=2)
    assert [trial.status for trial in run.trials] == ["completed", "completed"]
    text = "what the function of stop= returns must be True or False, got 'no'"
    assert caplog.text.count(text) == 1 and f"{text}; stop= raised it" in run.report()


def test_patience_ends_a_fit(tmp_path: Path) -> None:
    run = hy.fit(
        linear, {"lr": 0.1}, dataset(), epochs=6, metric="loss", mode="max", stop=hy.Patience(2), engine=hy.Inline(),
        directory=tmp_path / "run",
    )  # fmt: skip
    assert (run.status, run.best.status, run.best.epoch, len(run.best.history)) == ("completed", "stopped", 1, 3)


def test_the_report_and_the_table_name_what_was_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = search(tmp_path / "run", hy.ASHA(2, sync=True), search=hy.Random(4))
    shown = capsys.readouterr().err
    assert shown.count("  paused  rung 1: it waits for ") == 3
    assert "  goes on to epoch 2  rung 1: 1st of 4, 2 go on" in shown
    assert "  stopped  rung 1: 4th of 4, 2 go on" in shown
    report = run.report()
    assert "1 of 4 trials completed, 3 stopped" in report
    assert "Search, with stop=ASHA(reduction_factor=2, sync=True)\n  rung 1  epoch 1  4 came  2 went on" in report
    assert "rung 1: 4th of 4, 2 go on" in report
    summary = run.summary()
    assert (summary["completed"], summary["stopped"], summary["failed"]) == (1, 3, 0)
    assert len(run.to_pandas()["reason"].dropna()) == 4


# ------------------------------------------------------------------------------------------------ budgets


def test_configurations_of_the_user_are_tried_first(tmp_path: Path) -> None:
    run = search(tmp_path / "run", search=hy.Random(2), enqueue=[{"lr": 0.5}, {"lr": 0.25}], epochs=1)
    rates = [trial.config["lr"] for trial in run.trials]
    assert rates[:2] == [0.5, 0.25] and len(rates) == 4
    plain = search(tmp_path / "plain", search=hy.Random(2), epochs=1)
    assert rates[2:] == [trial.config["lr"] for trial in plain.trials]  # a sampler counts its own


def test_values_outside_the_space_are_tried_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Optuna's `enqueue_trial` does, which warns too, and does not learn from them."""
    run = search(tmp_path / "run", search=hy.TPE(1), enqueue=[{"lr": 2.0}, {"lr": 1.0}], epochs=1)
    assert [trial.config["lr"] for trial in run.trials][:2] == [2.0, 1.0]
    assert re.search(r"enqueue: lr = 2\.0 is outside 0\.001 to 1: .*does not learn", caplog.text)
    assert caplog.text.count("enqueue: ") == 1


def stepped(trial: Any) -> None:
    trial.suggest_float("rate", 0.1, 0.7, step=0.1)
    trial.suggest_int("width", 16, 1_048_576, step=16)


@pytest.mark.parametrize(
    ("config", "departure"),
    [
        ({"rate": 0.3, "width": 48}, ""),
        ({"rate": 0.7, "width": 1_048_576}, ""),  # 0.1 + 6 · 0.1 = 0.7000000000000001
        ({"rate": 0.35, "width": 48}, "rate = 0.35 lies between two steps of 0.1 from 0.1"),
        ({"rate": 0.3, "width": 40}, "width = 40 lies between two steps of 16 from 16"),
        ({"rate": 0.8, "width": 48}, "rate = 0.8 is outside 0.1 to 0.7"),
        ({"rate": 0.3, "width": 2_000_000}, "width = 2000000 is outside 16 to 1048576"),
    ],
)
def test_values_between_steps_are_warned_of(
    config: dict[str, Any], departure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: a value between two steps was tried without a word, and searches learned from it as from the next step."""
    text = f"enqueue: {departure}: the space has no such value; it is tried all the same\n"
    enqueued(hy.Random(1), stepped, [config])
    assert caplog.text.endswith(text) if departure else not caplog.text
    sampler = open_sampler(hy.TPE(1), stepped, 0, ["min"])
    with quietly() as optuna:
        learned = sampler._frozen(optuna, Observation(config, "completed", {1: 0.5}, (0.5,), -1, {}))  # type: ignore[union-attr]
    assert (learned is None) == bool(departure)


def test_values_between_steps_of_a_range_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    enqueued(hy.Random(1), hy.Space(rate=hy.quniform(0, 1, 0.25)), [{"rate": 0.75}, {"rate": 0.3}])
    assert caplog.text.count("enqueue: ") == 1
    assert re.search(r"enqueue: rate = 0\.3 .*0\.25 from 0: ", caplog.text)


def test_steps_of_integers_take_integers() -> None:
    with pytest.raises(SpecError, match=r"width must .*16 to 1048576"):
        enqueued(hy.Random(1), stepped, [{"rate": 0.3, "width": 48.0}])


def test_constants_of_a_space_need_not_be_enqueued() -> None:
    """Bug: a parameter that is not asked for in this configuration had to be in it."""
    space = hy.Space(kind=hy.choice(["sgd", "adam"]), net="small",
                     momentum=lambda c: hy.uniform(0, 1) if c["kind"] == "sgd" else None)  # fmt: skip
    whole = enqueued(hy.Random(1), space, [{"kind": "adam"}, {"kind": "sgd", "momentum": 0.5, "net": "large"}])
    assert isinstance(whole, Enqueued)
    assert whole.configs == ({"kind": "adam", "net": "small"}, {"kind": "sgd", "net": "large", "momentum": 0.5})
    with pytest.raises(SpecError, match="has no 'momentum'"):
        enqueued(hy.Random(1), space, [{"kind": "sgd"}])


def test_a_parameter_that_is_not_asked_for_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    space = hy.Space(kind=hy.choice(["sgd", "adam"]), lr=hy.uniform(0, 1),
                     momentum=lambda c: hy.uniform(0, 1) if c["kind"] == "sgd" else None)  # fmt: skip
    enqueued(hy.Random(1), space, [{"kind": "adam", "lr": 0.5, "momentum": 0.5}])
    assert re.search(r"enqueue: momentum .*\{'kind': 'adam', 'lr': 0\.5\}", caplog.text)


def test_a_search_learns_from_them(tmp_path: Path) -> None:
    run = search(tmp_path / "run", search=hy.TPE(3), enqueue=[{"lr": 0.5}], epochs=1)
    assert [line.count for line in journal(run.directory) if isinstance(line, Proposed)] == [-1, 0, 1, 2]


def test_at_most_so_many_trials(tmp_path: Path) -> None:
    run = search(tmp_path / "run", search=hy.Random(100), max_trials=3, epochs=1)
    assert (run.status, len(run.trials)) == ("completed", 3)


def test_the_run_ends_at_its_goal(tmp_path: Path) -> None:
    run = search(tmp_path / "run", goal=0.3, search=hy.Random(50))
    assert run.status == "completed" and len(run.trials) < 50
    (closed,) = [line for line in journal(run.directory) if isinstance(line, Closed)]
    assert run.best.metrics["val_loss"] <= 0.3 and closed.reason.endswith("the goal was 0.3")
    assert closed.reason in run.report()


def test_the_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="no trial has a finite val_loss; max_time=1e-06 seconds are over"):
        search(tmp_path / "run", max_time=1e-6, search=hy.Random(50))
    run = hy.load(tmp_path / "run")
    assert run.status == "failed"
    assert {trial.status for trial in run.trials} == {"stopped"}
    assert "max_time=1e-06 seconds are over" in run.report()


def test_a_search_that_raises_ends_the_search_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import optuna

    class Fails(optuna.samplers.RandomSampler):
        def sample_independent(self, study: Any, *rest: Any) -> Any:
            if len(study.trials) > 2:
                raise ValueError("I am lost")
            return super().sample_independent(study, *rest)

    run = search(tmp_path / "run", search=hy.Optuna(Fails, 9), epochs=1)
    assert (run.status, len(run.trials)) == ("completed", 2)
    assert "search= raised ValueError: I am lost (test_search.py, line " in caplog.text
    (line,) = [line for line in journal(run.directory) if isinstance(line, Exhausted)]
    assert line.reason.startswith("the search raised ValueError: I am lost (test_search.py, line ")
    assert f"  nothing more was proposed: {line.reason}\n" in hy.load(run.directory).report()
    with pytest.raises(
        RunDirectoryError, match=r"of 2 trials.*I am lost \(test_search\.py.*hy\.resume.*to_optuna"
    ) as raised:
        search(run.directory, search=hy.Optuna(Fails, 9), epochs=1, resume=True)
    assert "search= of more trials" not in str(raised.value), "a search that learns is given no more"
    assert len(hy.resume(run.directory).trials) == 2
    study = hy.load(run.directory).to_optuna()
    assert len(search(tmp_path / "more", search=hy.Optuna(study=study, trials=3), epochs=1).trials) == 3


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stop": hy.ASHA()}, "what hy.ASHA(…) decides depends on when results come in; hy.ASHA(sync=True) waits"),
        ({"stop": hy.Median()}, "hy.Median(sync=True) waits for all"),
        ({"search": hy.TPE(4)}, "give it batch=n, as in hy.TPE(64, batch=8)"),
        ({"max_time": 60}, "max_time=60 seconds depends on the machine"),
        ({"goal": 0.1}, "goal=0.1 depends on time"),
    ],
)
def test_time_dependence_is_refused_or_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(Inexact) as raised:
        search(tmp_path / "run", **{"exact": True} | more)
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
    with caplog.at_level(logging.WARNING):
        search(tmp_path / "other", **{"exact": "warn", "epochs": 3, "search": hy.Random(2)} | more)
    assert caplog.text.count("not exact: ") == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stop": hy.ASHA}, r"stop must be hy.ASHA\(…\), .* got <class 'hopyard.stopping.asha.ASHA'>"),
        ({"stop": "asha"}, "stop must be .* got 'asha'"),
        ({"stop": hy.ASHA(min_epochs=4)}, "ASHA: min_epochs = 4 must .* 4: "),
        (
            {"stop": hy.Hyperband(3, min_epochs=2)},
            "Hyperband: min_epochs = 2 times reduction_factor = 3 must be",
        ),
        ({"stop": hy.ASHA(min_partitions=2)}, 'metric of training.*metric="loss"'),
        ({"max_time": 0}, "max_time must"),
        ({"max_trials": 0}, "max_trials must be an integer >= 1, got 0"),
        ({"goal": float("nan")}, "goal must .* nan"),
        ({"enqueue": [{"rate": 1}]}, "enqueue: {'rate': 1}: no parameter 'rate'; there are: 'lr'"),
        ({"enqueue": {"lr": 1}}, "enqueue must"),
        ({"enqueue": [{}]}, "enqueue: {} has no 'lr'"),
        ({"enqueue": [{"lr": "small"}]}, r"lr must .*0\.001 to 1, got 'small'"),
        ({"search": hy.TPE}, "search must be hy.Grid"),
        ({"mode": "least"}, 'mode must be "min" or "max"'),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        search(tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hy.ASHA(1), "ASHA: reduction_factor must be an integer >= 2, got 1"),
        (lambda: hy.ASHA(2.5), "ASHA: reduction_factor must be an integer >= 2, got 2.5"),
        (lambda: hy.ASHA(min_epochs=0), "ASHA: min_epochs must be an integer >= 1, got 0"),
        (lambda: hy.ASHA(min_epochs=2, min_partitions=2), "leave the other out"),
        (lambda: hy.ASHA(sync=1), "ASHA: sync must be True or False, got 1"),
        (lambda: hy.ASHA(sync=True, promote=False), "leave promote out"),
        (lambda: hy.Hyperband(True), "Hyperband: reduction_factor must be an integer >= 2, got True"),
        (lambda: hy.Median(min_trials=0), "Median: min_trials must be an integer >= 1, got 0"),
        (lambda: hy.Patience(0), "Patience: epochs must .* 0"),
        (lambda: hy.Patience(1, min_delta=-1), "Patience: min_delta must .* -1"),
        (lambda: hy.TPE(0), "TPE: trials must .* 0"),
        (lambda: hy.GP(4, batch=0), "GP: batch must .* 0"),
        (lambda: hy.Optuna("tpe", 4), "Optuna: sampler must"),
        (lambda: hy.Optuna(trials=4, study="sqlite:///a"), "Optuna: study must .* 'sqlite:///a'"),
    ],
)
def test_bad_values_are_refused_where_they_are_made(make: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()


def test_a_fit_has_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"stop = hy\.ASHA\(…\) .*hy\.Patience"):
        hy.fit(linear, {"lr": 1.0}, dataset(), epochs=4, metric="loss", mode="min", stop=hy.ASHA())
    with pytest.raises(SpecError, match="needs metric= and mode="):
        hy.fit(linear, {"lr": 1.0}, dataset(), epochs=4, stop=hy.Patience(2))


def test_a_search_without_a_space_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"space must be .*search=hy\.TPE\(…\)"):
        hy.select(linear, None, dataset(), search=hy.TPE(2), epochs=1, metric="loss", mode="min")


def test_optuna_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(UsageError, match=r"need Optuna: pip install 'hopyard\[search\]'"):
        search(tmp_path / "run", search=hy.TPE(2))


def test_a_sampler_of_another_space_is_refused_with_its_reason(tmp_path: Path) -> None:
    import optuna

    def grid(seed: int) -> Any:
        return optuna.samplers.GridSampler({"rate": [0.1, 0.2]}, seed=seed)

    with pytest.raises(SpecError, match=r"search: .*ValueError: .* lr, is not found"):
        search(tmp_path / "run", search=hy.Optuna(grid, 2))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:The value `128` is out of range")
def test_a_sampler_that_knows_choices_by_value_gets_their_indices() -> None:
    """Bug: it was said that 'sgd' is not in (0, 1)."""
    import optuna

    space = hy.Space(opt=hy.choice(["adam", "sgd"]), units=hy.randint(16, 129, step=16), lr=hy.uniform(0, 1))
    grid: dict[str, Any] = {"opt": [0, 1], "units": [0, 7], "lr": [0.5]}
    for values, words in (
        ({"opt": ["sgd"]}, r"ValueError: 'sgd' not in \(0, 1\); .*by their numbers: opt = 'sgd' is 1 to them"),
        (
            {"units": [128]},
            r"128 is not .*from 0 to 7; .*: units = 128 is 7",
        ),
    ):
        sampler = partial(optuna.samplers.GridSampler, {**grid, **values})
        with pytest.raises(SpecError, match=words):
            hy.Optuna(sampler, 2).open(space, 0).propose([])
    config = hy.Optuna(partial(optuna.samplers.GridSampler, grid), 2).open(space, 0).propose([]).config  # type: ignore[union-attr]
    assert config["opt"] in ("adam", "sgd") and config["units"] in (16, 128)


def test_a_metric_that_the_recipe_does_not_report_is_refused_in_preflight(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"metric = 'val_auc': the recipe reports .*; give one of these"):
        search(tmp_path / "run", hy.ASHA(), metric="val_auc", mode="max")


def test_a_sampler_that_counts_in_the_study_is_refused(tmp_path: Path) -> None:
    import optuna

    with pytest.raises(SpecError, match="QMCSampler counts"):
        search(tmp_path / "run", search=hy.Optuna(optuna.samplers.QMCSampler, 3), enqueue=[{"lr": 0.5}])
    assert not (tmp_path / "run").exists()


def test_a_function_that_returns_no_sampler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"sampler= must .* None"):
        search(tmp_path / "run", search=hy.Optuna(lambda seed: None, 3))
    assert not (tmp_path / "run").exists()


def test_a_function_of_stop_that_takes_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"two arguments, .*: too many"):
        search(tmp_path / "run", lambda trial: True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (lambda trial, history: trial.seconds > 0, "trial.seconds differ from run to run"),
        (lambda trial, history: trial.model("last") is not None, "which States are stored by now depends on time"),
    ],
    ids=["seconds", "models"],
)
def test_time_decides_nothing_in_an_exact_run(tmp_path: Path, stop: Any, words: str) -> None:
    """Bugs: a function that looked at `trial.seconds` was accepted; one that looked at a model stopped a trial only if
    its State was stored already."""
    run = search(tmp_path / "run", stop, search=hy.Random(2), exact=True, epochs=2)
    assert [trial.status for trial in run.trials] == ["completed"] * 2 and run.trials[0].seconds > 0
    assert f"Inexact: {words}" in (tmp_path / "run" / "report.txt").read_text()


def test_seconds_alone_are_no_objective(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match='metric = "seconds"'):
        search(tmp_path / "run", metric="seconds")


def test_a_sampler_that_ignores_its_seed_is_not_exact(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import optuna

    kind = hy.Optuna(lambda seed: optuna.samplers.RandomSampler(), 2, batch=2)
    with pytest.raises(Inexact, match="sampler of search="):
        search(tmp_path / "run", search=kind, exact=True)
    assert not (tmp_path / "run").exists()
    search(tmp_path / "run", search=kind, exact="warn", epochs=1)
    assert caplog.text.count("not exact: the sampler of search= proposes something else") == 1


def test_a_first_rung_beyond_the_partitions_is_refused(tmp_path: Path) -> None:
    """Bug: every trial went to its end, and nothing was said."""
    more: dict[str, Any] = {"metric": "loss", "search": hy.Random(2), "epochs": 2}
    with pytest.raises(SpecError, match=r"min_partitions = 8 must be below .* 8 \(2 epochs of 4\)"):
        search(tmp_path / "run", hy.ASHA(min_partitions=8), **more)
    assert not (tmp_path / "run").exists()
    run = search(tmp_path / "run", hy.ASHA(2, min_partitions=5, sync=True), **more)
    assert [trial.reason for trial in run.trials].count("rung 1: 2nd of 2, 1 goes on") == 1


@pytest.mark.parametrize(
    "rule",
    [hy.Patience(4), hy.Patience(1, min_epochs=4), hy.Median(min_epochs=9), hy.Median(min_epochs=4, sync=True)],
    ids=repr,
)
def test_a_rule_may_be_too_patient_to_stop_a_trial(tmp_path: Path, rule: Any) -> None:
    """Bug: it was refused, though it says what to do."""
    run = search(tmp_path / "run", rule, search=hy.Random(3), epochs=4)
    assert [(trial.status, len(trial.history)) for trial in run.trials] == [("completed", 4)] * 3


class Binned(Linear):
    """Reports an additive array."""

    def train(self, batch: Any) -> Any:
        return {**super().train(batch), "auc": ([1.0, 2.0], batch.rows)}

    def result(self, name: str, total: Any, rows: float) -> float:
        return float(total[1]) / rows


def test_a_rung_below_an_epoch_is_refused_for_a_metric_that_has_no_value_there(tmp_path: Path) -> None:
    """Bug: no trial ever went on, and the run was completed."""

    def recipe(config: dict[str, Any]) -> Binned:
        return Binned(WIDTH, 2, lr=config["lr"], batch_size=16)

    more: dict[str, Any] = {"metric": "auc", "mode": "max", "epochs": 2}
    with pytest.raises(PreflightError, match=r"metric = 'auc': .*min_partitions.*\"accuracy\".*min_epochs=1"):
        select(tmp_path / "run", recipe, CONFIGS[:2], stop=hy.ASHA(2, min_partitions=2), **more)
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Dispatch)]
    run = select(tmp_path / "epochs", recipe, CONFIGS[:2], stop=hy.ASHA(2, sync=True), **more)
    assert run.status == "completed" and "completed" in {trial.status for trial in run.trials}
    more["metric"] = "accuracy"
    run = select(tmp_path / "accuracy", recipe, CONFIGS[:2], stop=hy.ASHA(2, min_partitions=2, sync=True), **more)
    assert run.status == "completed" and "completed" in {trial.status for trial in run.trials}


def test_a_run_with_a_rule_is_not_given_more(tmp_path: Path) -> None:
    run = search(tmp_path / "run", hy.Patience(1), search=hy.Random(2))
    with pytest.raises(SpecError, match="a run with stop="):
        hy.resume(run.directory, epochs=9)
    with pytest.raises(SpecError, match=r"epochs = 4: .* has 4 epochs already"):
        hy.resume(run.directory, epochs=4)  # bug: it said that it cannot be given more, but not that it has these
    closed = search(tmp_path / "closed", goal=10.0, search=hy.Random(2))
    with pytest.raises(SpecError, match="budget"):
        hy.resume(closed.directory, epochs=9)


def test_another_rule_is_another_run(tmp_path: Path) -> None:
    search(tmp_path / "run", hy.Patience(1), search=hy.Random(2))
    with pytest.raises(RunDirectoryError, match=r"with stop=Patience\(epochs=1.*not None"):
        search(tmp_path / "run", None, search=hy.Random(2), resume=True)
    again = search(tmp_path / "run", hy.Patience(1), search=hy.Random(2), resume=True)
    assert again.status == "completed"


def test_too_few_trials_for_hyperband_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    search(tmp_path / "run", hy.Hyperband(2), search=hy.Random(3))
    assert "has 3 brackets of 10 trials" in caplog.text


def test_a_search_that_can_learn_nothing_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "lets all 3 trials wait for each other, so the search proposes them all before"
    for kind, said in ((hy.TPE(3), 1), (hy.TPE(3, batch=2), 0)):
        caplog.clear()
        search(tmp_path / str(said), hy.ASHA(2, sync=True), search=kind, epochs=2, exact=True)
        assert caplog.text.count(text) == said


def test_decisions_are_in_the_journal() -> None:
    assert {Paused, Granted, Stopped, Closed, Dispatch} <= set(DECISIONS)
