"""Successive halving, as tables: given these reports, expect these decisions."""

import math

import pytest

from hopyard.core.runs.events import Checked, Formed, Granted, Paused, Resumed, Retried, Stopped
from hopyard.spec import Gang
from hopyard.stopping import ASHA, Hyperband, Median
from hopyard.stopping.rung import Rung
from machines import Run

INF = math.inf


def search(stop, trials, slots, epochs=9, **spec):
    """A run of trials of one partition, without validation, by their loss."""
    return Run(trials=trials, slots=slots, epochs=epochs, partitions=1, metric="loss", stop=stop, **spec)


def report(run, trial, loss):
    """The trial's next epoch is over: return what is decided then, in short."""
    slot = next(s.id for s in run.machine.slots.values() if s.busy > 0 and run.unit(s.id).trial == trial)
    unit = run.unit(slot)
    out = run.done(slot, sums={"loss": (loss, 1.0)})
    out = out + run.durable(slot, trial, unit.step + 1, unit.lease)
    kinds = {Granted: "goes on", Paused: "waits", Stopped: "ends"}
    return [(kinds[type(c)], c.trial, c.reason) for c in out if type(c) in kinds]


def training(run):
    """The trials whose units slots have."""
    return sorted(run.unit(slot.id).trial for slot in run.machine.slots.values() if slot.busy > 0)


def run_to_the_end(run, loss):
    """Let every epoch have the loss that `loss(trial, epoch)` gives; return trial → number of its epochs."""
    while working := training(run):
        trial = working[0]
        report(run, trial, loss(trial, len(run.machine.trials[trial].history)))
    return {trial.id: len(trial.history) for trial in run.machine.trials.values()}


FREE = "a free worker promotes the best of a rung without one"


def test_a_trial_waits_until_it_is_among_the_best_of_its_rung():
    run = search(ASHA(3), trials=6, slots=2)
    run.machine.search.standing.exhausted = False  # others may still be proposed
    run.folds = False
    assert report(run, 0, 0.5) == [("waits", 0, "rung 1: 1st of 1, top 1/3 goes on")]
    assert report(run, 1, 0.3) == [("waits", 1, "rung 1: 1st of 2, top 1/3 goes on")]
    assert report(run, 2, 0.4) == [  # two slots train four trials at most: there is room for one
        ("goes on", 1, "rung 1: 1st of 3, top 1/3 goes on"),
        ("waits", 2, "rung 1: 2nd of 3, top 1/3 goes on"),
    ]
    assert [run.machine.trials[n].status for n in (0, 1, 2)] == ["paused", "running", "paused"]
    assert run.machine.trials[1].target == 3


def test_no_promotion_while_enough_trials_train():
    run = search(ASHA(2), trials=12, slots=2)
    out = [report(run, training(run)[0], loss)[0][0] for loss in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
    assert out == ["waits"] * 8
    promoted = report(run, training(run)[0], 0.9)  # three train now, and there is room for four
    assert [(what, trial) for what, trial, _ in promoted] == [("goes on", 0), ("waits", 8)]


def test_a_slot_that_would_idle_promotes_the_best_of_the_highest_rung_that_has_promoted_none():
    run = search(ASHA(3), trials=2, slots=2)
    assert report(run, 0, 0.5) == [("goes on", 0, f"rung 1: 1st of 1, {FREE}")]
    assert report(run, 1, 0.4) == [("waits", 1, "rung 1: 1st of 2, top 1/3 goes on")]
    assert report(run, 0, 0.3) == report(run, 0, 0.2)[:0]  # between rungs nothing is decided
    run = search(ASHA(3), trials=1, slots=1)
    assert run_to_the_end(run, lambda trial, epoch: 1.0) == {0: 9}
    assert run.machine.trials[0].status == "completed"


def test_the_trials_that_wait_at_the_end_are_stopped_and_the_run_is_completed():
    run = search(ASHA(3), trials=9, slots=1)
    epochs = run_to_the_end(run, lambda trial, epoch: trial)
    assert epochs == {0: 9, 1: 3, 2: 3, **dict.fromkeys(range(3, 9), 1)}
    trials = run.machine.trials
    assert [trials[n].status for n in (0, 1, 3)] == ["completed", "stopped", "stopped"]
    assert trials[3].reason == "rung 1: 4th of 9, top 1/3 goes on; the search is over"
    assert run.lines[-2].reason == "rung 1: 9th of 9, top 1/3 goes on; the search is over"
    assert run.machine.trials[1].states.keys() == {1, 3}  # its best epoch, the first of equals, and its last


def test_a_value_that_is_not_finite_never_goes_on():
    run = search(ASHA(2), trials=4, slots=4)
    assert run_to_the_end(run, lambda trial, epoch: INF) == dict.fromkeys(range(4), 1)
    assert "no finite value" in run.machine.trials[0].reason


def test_equal_values_favour_the_lower_number():
    run = search(ASHA(2), trials=4, slots=1, epochs=2)
    assert run_to_the_end(run, lambda trial, epoch: 1.0) == {0: 2, 1: 2, 2: 1, 3: 1}


def test_the_greatest_values_are_the_best_where_the_mode_is_max():
    run = search(ASHA(2), trials=4, slots=1, epochs=2, mode="max")
    assert run_to_the_end(run, lambda trial, epoch: trial) == {0: 1, 1: 1, 2: 2, 3: 2}


def test_without_promotion_a_trial_that_is_not_among_the_best_is_stopped_for_good():
    run = search(ASHA(2, promote=False), trials=4, slots=4, epochs=2)
    out = {0: report(run, 0, 0.4), 1: report(run, 1, 0.3), 2: report(run, 2, 0.5), 3: report(run, 3, 0.35)}
    assert {trial: decided[0][0] for trial, decided in out.items()} == {
        0: "goes on",  # it was the first: nobody was better
        1: "goes on",
        2: "ends",
        3: "goes on",
    }
    assert out[2] == [("ends", 2, "rung 1: 3rd of 3, top 1/2 goes on")]


def test_a_synchronous_rung_waits_for_all_and_decides_at_once():
    run = search(ASHA(3, sync=True), trials=4, slots=4)
    assert report(run, 0, 0.5) == [("waits", 0, "rung 1: it waits for 3 others")]
    report(run, 1, 0.1), report(run, 2, 0.3)
    assert report(run, 3, 0.2) == [
        ("goes on", 1, "rung 1: 1st of 4, 1 goes on"),
        ("ends", 3, "rung 1: 2nd of 4, 1 goes on"),
        ("ends", 2, "rung 1: 3rd of 4, 1 goes on"),
        ("ends", 0, "rung 1: 4th of 4, 1 goes on"),
    ]


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_a_synchronous_search_does_not_depend_on_the_slots(slots):
    for stop in (ASHA(2, sync=True), Hyperband(2, sync=True)):
        run = search(stop, trials=11, slots=slots, epochs=8)
        epochs = run_to_the_end(run, lambda trial, epoch: (trial * 7 + epoch) % 11)
        alone = search(stop, trials=11, slots=1, epochs=8)
        assert epochs == run_to_the_end(alone, lambda trial, epoch: (trial * 7 + epoch) % 11)


def test_a_batch_is_compared_with_all_earlier_ones():
    """Bug: each was compared with itself alone, so that of batches of one every trial went on."""
    run = search(ASHA(3, sync=True), trials=4, slots=1, epochs=2, batch=1)
    assert run_to_the_end(run, lambda trial, epoch: [0.5, 0.7, 0.4, 0.6][trial]) == {0: 2, 1: 1, 2: 2, 3: 1}
    assert run.machine.trials[1].reason == "rung 1, all batches so far: 2nd of 2, 1 goes on"
    assert run.machine.trials[3].reason == "rung 1, all batches so far: 3rd of 4, 1 goes on"
    run = search(ASHA(3, sync=True), trials=6, slots=3, epochs=2, batch=3)
    assert run_to_the_end(run, lambda trial, epoch: 6.0 - trial) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 2, 5: 2}


@pytest.mark.parametrize("slots", [2, 5, 11])
def test_decisions_of_batches_do_not_depend_on_slots(slots):
    def loss(trial, epoch):
        return (trial * 7 + epoch) % 11

    for stop in (ASHA(2, sync=True), Median(min_trials=2, sync=True)):
        run, alone = (search(stop, trials=11, slots=n, epochs=8, batch=3) for n in (slots, 1))
        assert run_to_the_end(run, loss) == run_to_the_end(alone, loss)


def test_a_batch_waits_for_a_trial_of_an_earlier_one_that_is_tried_again():
    run = search(ASHA(2, sync=True), trials=4, slots=4, epochs=2, batch=2)
    for slot in (0, 2):
        run.failed(slot, "user")
    run_to_the_end(run, lambda trial, epoch: 0.1 + trial / 10)
    run.give(Resumed(at=1.0))
    run.at = 1.0
    for trial in (0, 2):
        run.give(Retried(at=1.0, trial=trial, recipe="another"))
    run.join(4), run.join(5)
    run.give(Checked(at=1.0, slot=4, trial=0, faults=(), names=("loss",)))
    assert report(run, 2, 0.2) == [("waits", 2, "rung 1: it waits for 1 other")]
    assert report(run, 0, 0.3) == [
        ("ends", 0, "rung 1: 2nd of 2, 1 goes on"),  # trial 1 has 0.2
        ("goes on", 2, "rung 1, all batches so far: 2nd of 4, 2 go on"),
    ]


def test_a_rung_does_not_wait_for_a_trial_that_failed():
    run = search(ASHA(2, sync=True), trials=4, slots=4, epochs=2)
    for trial in (0, 1, 2):
        report(run, trial, trial)
    slot = next(s.id for s in run.machine.slots.values() if s.busy > 0)
    run.failed(slot, "user")
    assert [trial.status for trial in run.machine.trials.values()][2:] == ["stopped", "failed"]
    assert training(run) == [0, 1]  # the best of three, and a half of the four that there were


def test_hyperband_deals_trials_to_brackets():
    assert Hyperband(3).brackets(27) == ((27, (1, 3, 9)), (12, (3, 9)), (6, (9,)), (4, ()))
    assert Hyperband(3).brackets(81)[0] == (81, (1, 3, 9, 27))
    assert [count for count, _ in Hyperband(3).brackets(81)] == [81, 34, 15, 8, 5]  # table 1 of the paper
    run = search(Hyperband(2), trials=6, slots=1, epochs=2)
    targets = [trial.target for trial in run.machine.trials.values()]
    assert Hyperband(2).brackets(2) == ((2, (1,)), (2, ()))
    assert targets == [1, 1, 2, 2, 1, 1]


def test_rungs_of_several_rounds_say_of_how_many():
    """Bug: 22 of the 11 trials of a bracket had come to its rung."""
    run = search(Hyperband(2, sync=True), trials=6, slots=1, epochs=2)
    assert run.machine.search.rungs() == [("bracket 1, rung 1, 2 rounds together", 1, 0, 0)]
    run_to_the_end(run, lambda trial, epoch: trial)
    assert run.machine.search.rungs() == [("bracket 1, rung 1, 2 rounds together", 1, 4, 2)]


def test_a_rung_may_come_before_the_first_epoch_ends():
    run = Run(trials=2, slots=2, epochs=2, partitions=4, metric="loss", stop=ASHA(2, min_partitions=1, sync=True))
    assert report(run, 0, 0.5) == [("waits", 0, "rung 1: it waits for 1 other")]
    assert report(run, 1, 0.4) == [
        ("goes on", 1, "rung 1: 1st of 2, 1 goes on"),
        ("ends", 0, "rung 1: 2nd of 2, 1 goes on"),
    ]
    assert (run.machine.trials[1].target, run.machine.trials[0].status) == (2, "stopped")


def test_a_trial_that_waits_gives_its_memory_back_once_its_state_is_stored():
    run = search(ASHA(2, sync=True), trials=2, slots=1, epochs=2)
    slot, unit = 0, run.unit(0)
    run.done(slot, sums={"loss": (1.0, 1.0)})
    assert run.machine.trials[0].states[1].memory_key
    assert "m1" in str(run.durable(0, 0, 1, unit.lease))
    assert not run.machine.trials[0].states[1].memory_key


def test_a_stopped_trial_uses_no_worker_any_more():
    """A fault of the predecessors: workers went on with trials that a scheduler had ended."""
    run = search(ASHA(2, sync=True), trials=4, slots=1, epochs=4)
    run_to_the_end(run, lambda trial, epoch: trial)
    stopped = {}
    for line in run.lines:
        if isinstance(line, Stopped):
            stopped[line.trial] = True
        assert not (type(line).__name__ == "Dispatch" and line.unit.trial in stopped)


def test_a_decision_is_taken_from_the_report_of_its_rung_alone():
    """A fault of the predecessors: a late validation of an earlier epoch was taken for the newest."""
    run = Run(
        trials=2,
        slots=2,
        epochs=4,
        partitions=1,
        validation=1,
        metric="val_loss",
        stop=ASHA(2, min_epochs=2, sync=True),
    )
    first = run.machine.trials[0]
    waiting = {}
    for _ in range(6):
        for slot in (0, 1):
            if run.machine.slots[slot].busy > 0:
                unit = run.unit(slot)
                if unit.kind == "validate" and unit.trial == 0 and unit.epoch == 0:
                    waiting[slot] = unit  # this one takes long
                    continue
                loss = 9.0 if unit.trial else float(unit.epoch)
                run.done(slot, sums={"loss": (loss, 1.0)}, memory_key="" if unit.kind == "validate" else None)
    assert waiting and first.step == 2
    assert not first.paused  # its second epoch may be in; its first one is not
    (slot,) = waiting
    run.done(slot, sums={"loss": (5.0, 1.0)}, memory_key="")
    assert first.paused or first.target == 4
    assert first.history[0]["val_loss"] == 5.0


def test_the_best_that_waits_is_found_after_one_began_anew():
    """Bug: the heap was filtered and no heap any more, and the rung counted the one that was promoted."""
    rung = Rung("rung 1", 1, 3, 0)
    for trial, value in enumerate((0.1, 0.5, 0.2, 0.6, 0.7, 0.3, 0.4)):
        rung.add(trial, value)
    for trial in (0, 2):
        rung.promote(trial)
    rung.remove(0, target=3)
    assert rung.best() == 5
    assert rung.promoted == 1


def test_a_gang_that_forms_promotes_a_trial_that_waits():
    """Bug: nothing was decided when it formed, and with nothing else to come the run waited for ever."""
    run = Run(trials=2, slots=3, epochs=4, partitions=1, validation=2, metric="val_loss", stop=ASHA(2), gang=Gang(2))
    run.done(1)  # workers 1 and 2 are the gang
    for _ in range(2):
        run.done(0)
    run.done(1)
    assert [run.unit(slot).kind for slot in (0, 1)] == ["validate", "validate"]
    run.durable(1, 0, 1, 1)
    late = run.machine.slots[1].busy
    run.lost(2)
    run.failed(0, "user")
    assert run.machine.trials[0].status == "paused"
    commands = run.done(1, lease=late, partitions=(1,))
    assert [type(command) for command in commands if isinstance(command, (Formed, Granted))] == [Formed, Granted]
    assert run.unit(1).kind == "train"


@pytest.mark.parametrize("sync", [True, False])
def test_a_trial_that_begins_anew_is_counted_once_at_each_rung(sync):
    """Bug: a rung that had promoted it before went on to count that, and a synchronous one waited for one too many."""
    run = search(ASHA(2, sync=sync), trials=4, slots=4, epochs=4)
    for trial in range(4):
        report(run, trial, trial / 10)
    slot = next(s.id for s in run.machine.slots.values() if s.busy > 0 and run.unit(s.id).trial == 1)
    run.failed(slot, "user")
    run_to_the_end(run, lambda trial, epoch: trial / 10)
    assert [trial.status for trial in run.machine.trials.values()] == ["completed", "failed", "stopped", "stopped"]
    came = run.machine.search.rungs()
    run.give(Resumed(at=1.0))
    run.give(Retried(at=1.0, trial=1, recipe="another"))
    assert run.machine.search.rungs()[0][2:] == (3, came[0][3] - 1)
    run.at = 1.0
    run.join(9)
    run.give(Checked(at=1.0, slot=9, trial=1, faults=(), names=("loss",)))
    run_to_the_end(run, lambda trial, epoch: trial / 10)
    assert not run.machine.open and len(run.machine.trials[1].history) > 1
    assert run.machine.search.rungs()[0][2:] == came[0][2:]
