"""Median stopping, patience, the user's function, and budgets, as tables."""

import math

import pytest

from hopyard.core.facts import Tick
from hopyard.core.runs.events import Closed, Finish, Granted, Resumed, Stopped
from hopyard.core.runs.machine import fold
from hopyard.stopping import ASHA, Asked, Lengths, Median, Patience
from machines import Run


def search(stop, trials, slots=1, epochs=6, **spec):
    return Run(trials=trials, slots=slots, epochs=epochs, partitions=1, metric="loss", stop=stop, **spec)


def curve(run, trial, losses):
    """Let a trial have these losses, as long as it trains; return what was decided about it, in words."""
    out = []
    for loss in losses:
        slot = next((s.id for s in run.machine.slots.values() if s.busy > 0 and run.unit(s.id).trial == trial), None)
        if slot is None:
            break
        unit = run.unit(slot)
        commands = run.done(slot, sums={"loss": (loss, 1.0)})
        commands = commands + run.durable(slot, trial, unit.step + 1, unit.lease)
        out += [c.reason for c in commands if isinstance(c, (Granted, Stopped)) and c.trial == trial]
    return out


def test_the_median_is_that_of_the_running_averages_of_trials_that_ended():
    run = search(Median(min_trials=2), trials=3, slots=3, epochs=3)
    curve(run, 0, [4.0, 2.0, 0.0])  # running averages 4, 3, 2
    curve(run, 1, [8.0, 4.0, 3.0])  # 8, 6, 5
    assert curve(run, 2, [5.0, 4.9, 0.0]) == [
        "epoch 1: best 5, median of 2 trials 6",
        "epoch 2: best 4.9, median of 2 trials 4.5",
    ]
    assert [trial.status for trial in run.machine.trials.values()] == ["completed", "completed", "stopped"]
    assert len(run.machine.trials[2].history) == 2


def test_a_trial_that_fell_back_is_judged_by_its_best():
    run = search(Median(min_trials=1), trials=2, slots=2, epochs=3)
    curve(run, 0, [2.0, 2.0, 2.0])
    curve(run, 1, [1.0, 9.0, 9.0])
    assert run.machine.trials[1].status == "completed"


@pytest.mark.parametrize("sync", [False, True])
def test_a_trial_without_a_finite_value_is_stopped_whatever_the_others_have(sync):
    """Bug: it was not worse than a median that was not finite either."""
    run = search(Median(min_trials=2, sync=sync), trials=4, slots=4, epochs=2)
    for trial, loss in enumerate((1.0, math.inf, math.inf, math.inf)):
        curve(run, trial, [loss] * (1 if sync or trial == 3 else 2))
    assert run.machine.trials[3].status == "stopped"
    assert run.machine.trials[0].status != "stopped"


def test_until_there_are_enough_to_compare_with_a_trial_goes_on():
    run = search(Median(min_trials=2), trials=2, slots=2, epochs=2)
    assert curve(run, 0, [9.0]) == ["epoch 1: trials to compare with: 0, at least 2 are needed"]


def test_a_synchronous_median_lets_trials_wait_for_each_other():
    run = search(Median(min_trials=1, sync=True), trials=4, slots=4, epochs=3)
    for trial, loss in enumerate((1.0, 2.0, 3.0)):
        curve(run, trial, [loss])
        assert run.machine.trials[trial].status == "paused"
    curve(run, 3, [4.0])
    assert [trial.status for trial in run.machine.trials.values()] == ["running", "running", "stopped", "stopped"]
    assert run.machine.trials[2].reason == "rung 1: best 3, median of the 3 others 2"


def test_a_synchronous_median_is_that_of_the_others():
    """Bug: the trial's own value was among them, which let it go on."""
    run = search(Median(min_trials=2, sync=True), trials=3, slots=3, epochs=2)
    for trial, loss in enumerate((0.0, 0.9, 1.0)):
        curve(run, trial, [loss])
    assert [trial.status for trial in run.machine.trials.values()] == ["running", "stopped", "stopped"]
    assert run.machine.trials[1].reason == "rung 1: best 0.9, median of the 2 others 0.5"


def test_a_synchronous_median_is_that_of_earlier_batches_too():
    """Bug: of batches of one, no trial had another to be compared with."""
    run = search(Median(min_trials=2, sync=True), trials=3, epochs=2, batch=1)
    assert [curve(run, trial, losses) for trial, losses in enumerate([[1.0, 1.0], [2.0, 2.0], [3.0, 0.0]])] == [
        ["rung 1: trials to compare with: 0, at least 2 are needed"],
        ["rung 1, all batches so far: trials to compare with: 1, at least 2 are needed"],
        ["rung 1, all batches so far: best 3, median of the 2 others 1.5"],
    ]


def test_a_synchronous_median_may_have_any_number_of_epochs():
    """Bug: a rung asked the one before it, and so on, until Python had enough."""
    run = search(Median(sync=True), trials=2, slots=2, epochs=1200)
    run.folds = False
    for _ in range(1100):
        for trial in (0, 1):
            curve(run, trial, [1.0])
    assert [len(trial.history) for trial in run.machine.trials.values()] == [1100, 1100]


@pytest.mark.parametrize(
    ("losses", "epochs"),
    [
        ([1.0, 0.9, 0.8, 0.7, 0.6, 0.5], 6),  # it improves all the time
        ([1.0, 1.1, 1.2, 0.5, 0.4, 0.3], 3),
        ([1.0, 0.99, 0.98, 0.97, 0.96, 0.95], 3),  # by less than min_delta
        ([1.0, 0.8, 0.79, 0.79, 0.1, 0.1], 4),
    ],
)
def test_patience_counts_epochs_without_improvement(losses, epochs):
    run = search(Patience(2, min_delta=0.05), trials=1)
    curve(run, 0, losses)
    assert len(run.machine.trials[0].history) == epochs
    assert run.machine.trials[0].status == ("completed" if epochs == 6 else "stopped")


def test_a_stopped_trial_keeps_its_best_epoch_and_its_last():
    run = search(Patience(2), trials=1)
    assert curve(run, 0, [0.5, 1.0, 1.0])[-1] == "epoch 3: the best loss is 0.5, of epoch 1"
    trial = run.machine.trials[0]
    assert (trial.best, list(trial.states), run.machine.status) == (0, [1, 3], "running")
    assert run.machine.open == 0


def test_the_users_function_decides_outside_and_its_answer_is_a_fact():
    run = search(Asked(), trials=2, slots=2, epochs=3)
    curve(run, 0, [1.0]), curve(run, 1, [1.0])
    assert run.machine.search.asks() == [0, 1]
    run.give(Granted(at=0.0, trial=0, target=2, reason="it may go on"))
    run.give(Stopped(at=0.0, trial=1, reason="the function of stop= said so"))
    assert run.machine.search.asks() == []
    assert [trial.status for trial in run.machine.trials.values()] == ["running", "stopped"]
    run.give(Stopped(at=0.0, trial=1, reason="again"))
    assert run.machine.trials[1].reason == "the function of stop= said so"


def test_the_next_driver_decides_what_a_killed_one_did_not():
    run = search(Patience(1), trials=1, epochs=3)
    curve(run, 0, [1.0])
    slot, unit = 0, run.unit(0)
    run.done(slot, sums={"loss": (2.0, 1.0)})
    lines = [line for line in run.lines if not isinstance(line, Stopped)]  # the disk was full behind its report
    machine = fold(lines)
    assert machine.search.standing.undecided == {0: 2} and unit.step == 1
    assert [type(c).__name__ for c in machine.handle(Resumed(at=1.0))] == ["Stopped"]


def test_a_replay_repeats_lengths():
    run = search(Lengths((2, 6)), trials=2, slots=2)
    curve(run, 0, [1.0] * 6), curve(run, 1, [1.0] * 6)
    assert [len(trial.history) for trial in run.machine.trials.values()] == [2, 6]
    assert [trial.status for trial in run.machine.trials.values()] == ["stopped", "completed"]


# -------------------------------------------------------------------------------- budgets


def test_the_goal_ends_the_run_with_its_reason():
    run = search(None, trials=2, slots=2, goal=0.5)
    curve(run, 0, [1.0]), curve(run, 1, [0.9])
    assert curve(run, 1, [0.5]) == ["trial 1 reached loss=0.5, the goal was 0.5"]
    assert [trial.status for trial in run.machine.trials.values()] == ["stopped", "stopped"]
    closed = [line for line in run.lines if isinstance(line, Closed)]
    assert [line.reason for line in closed] == ["trial 1 reached loss=0.5, the goal was 0.5"]
    assert run.machine.exhausted


def test_time_ends_the_run_but_not_that_without_a_driver():
    run = search(None, trials=1, max_time=10.0)
    run.at = 4.0
    curve(run, 0, [1.0])
    assert run.machine.earliest() == 10.0
    run.at = 100.0
    run.give(Resumed(at=100.0))
    run.join(1)
    assert run.machine.earliest() == 106.0
    out = run.give(Tick(at=106.0))
    assert [c.reason for c in out if isinstance(c, (Closed, Stopped))] == ["max_time=10 seconds are over"] * 2
    assert [c.status for c in out if isinstance(c, Finish)] == ["completed"]


def test_a_unit_at_work_when_time_is_over_counts_no_longer():
    run = search(None, trials=1, slots=1, max_time=10.0)
    curve(run, 0, [1.0])
    lease = run.unit(0).lease
    run.at = 10.0
    run.give(Tick(at=10.0))
    assert run.machine.trials[0].status == "stopped" and run.machine.trials[0].step == 1
    run.done(0, lease=lease, partitions=(0,))
    assert run.machine.trials[0].step == 1


def test_paused_trials_end_with_the_goal_too():
    run = search(ASHA(2, sync=True), trials=2, slots=2, goal=0.1, epochs=4)
    curve(run, 0, [0.9])
    assert run.machine.trials[0].status == "paused"
    curve(run, 1, [0.1])
    assert [trial.status for trial in run.machine.trials.values()] == ["stopped", "stopped"]
