"""Given these events, expect these commands."""

import math

import pytest

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Delete,
    Dispatch,
    Done,
    Exhausted,
    Finish,
    Finished,
    Joined,
    Left,
    Proposed,
    Release,
    Replace,
    Resumed,
    Retried,
    Stopped,
    StoreAway,
    StoreBack,
    Warn,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.spec import Array, ModelInfo, Ref, RunSpec, Timeouts, Unit, Warned
from machines import Run, deferred, dispatched
from snapshots import awaited

# -------------------------------------------------------------------------------- the straight road


def test_a_run_of_one_trial():
    run = Run()
    assert run.first == [
        Check(at=0.0, slot=0, trial=0),
        Dispatch(at=0.0, slot=0, unit=Unit(1, 0, "train", 0, (0,), None)),
    ]
    assert run.done(0) == [Dispatch(at=0.0, slot=0, unit=Unit(2, 0, "train", 0, (1,), Ref(0, 1, 1), "m1"))]
    assert run.durable(0, 0, 1, 1) == []
    assert run.done(0) == [Release(0, "m1"), Release(0, "m2")]
    assert run.durable(0, 0, 2, 2) == [Delete(Ref(0, 1, 1)), Finish("completed")]
    assert run.machine.kept() == {Ref(0, 2, 2)}
    assert run.give(Finished(at=0.0, status="completed")) == []
    assert run.machine.status == "completed"


def test_a_slot_is_spare_when_it_had_nothing_to_do_and_nothing_that_only_it_has():
    run = Run(slots=2)
    assert run.machine.spare(0.9, 1.0) == []
    assert run.machine.spare(1.0, 1.0) == [1]
    run.at = 5.0
    run.done(0)
    run.done(0)
    assert run.machine.spare(9.0, 1.0) == [1]  # slot 0 is idle, and alone has the last State
    assert run.give(Left(at=9.0, slot=1, reason="spare")) == []
    assert run.join(2) == []
    assert run.machine.spare(5.5, 1.0) == []
    assert run.durable(0, 0, 1, 1) == []
    assert run.durable(0, 0, 2, 2) == [Delete(Ref(0, 1, 1)), Finish("completed")]


def test_the_last_slot_is_not_spare():
    run = Run(trials=1, slots=3)
    assert run.machine.spare(1.0, 0.0) == [1, 2]
    for slot in (1, 2):
        run.give(Left(at=1.0, slot=slot, reason="spare"))
    run.done(0)
    run.durable(0, 0, 1, 1)
    assert run.machine.spare(9.0, 0.0) == []


def test_no_slot_is_spare_while_a_trial_waits_for_what_is_away():
    """Bug: all trials waited for a store that was away, and all slots but one were given back for ever."""
    run = Run(trials=2, slots=2)
    run.failed(0, "store")
    run.failed(1, "store")
    assert run.machine.spare(1.0, 0.0) == []
    assert len(dispatched(run.tick())) == 2


def test_no_slot_is_spare_while_a_state_is_to_be_stored_first():
    run = Run(slots=2)
    assert run.machine.spare(1.0, 0.0) == [1]
    run.hop(0, 1)
    run.missed(1)
    assert not any(slot.busy for slot in run.machine.slots.values())
    assert run.machine.spare(1.0, 0.0) == []
    assert dispatched(run.durable(0, 0, 1, 1)) == [(0, 0, "train", 0, (1,))]


def test_trials_rotate_over_partitions_from_their_own():
    run = Run(trials=3, slots=3, partitions=3)
    assert dispatched(run.first) == [(n, n, "train", 0, (n,)) for n in range(3)]


def test_a_trial_stays_where_it_is_in_memory():
    assert dispatched(Run(slots=2).done(0)) == [(0, 0, "train", 0, (1,))]


def test_a_trial_hops_where_another_would_decide_the_end_of_the_run():
    run = Run(trials=3, slots=2, partitions=8)
    slots_of = {trial: [] for trial in range(3)}
    while any(slot.busy for slot in run.machine.slots.values()):
        for slot in (0, 1):
            if run.machine.slots[slot].busy:
                slots_of[run.unit(slot).trial].append(slot)
                run.done(slot)
    every = [slot for slots in slots_of.values() for slot in slots]
    assert abs(every.count(0) - every.count(1)) <= 2  # they end together
    assert any(set(slots) == {0, 1} for slots in slots_of.values())


def test_model_info_goes_to_all_workers_of_a_trial():
    model = ModelInfo("alike", 8)
    run = Run(slots=2, partitions=3)
    assert run.unit(0).model is None
    run.done(0, model=model)
    assert run.unit(0).model == model
    run.lost(0)
    assert (run.unit(1).start, run.unit(1).model) == (None, model)
    run.give(Resumed(at=1.0))
    run.join(2)
    assert run.unit(2).model == model


def test_a_trial_waits_at_its_target():
    run = Run(trials=2, partitions=4)
    run.folds = False  # no journal has another target yet
    run.machine.trials[0].target = 1
    assert dispatched(run.done(0)) == [(0, 1, "train", 0, (2,))]
    while (slot := run.machine.slots[0]).busy:
        lease = run.unit(0).lease
        run.done(0)
        run.durable(0, 1, run.machine.trials[1].step, lease)
    waiting, other = run.machine.trials.values()
    assert (waiting.ended, waiting.lease, waiting.step) == (False, 0, 1)
    assert (other.status, slot.busy) == ("completed", 0)
    assert run.machine.status == "running" and run.machine.open == 1


def test_a_validation_runs_beside_the_next_epoch():
    run = Run(slots=2, epochs=2, partitions=1, validation=1)
    assert dispatched(run.done(0)) == [(0, 0, "validate", 0, (0,)), (1, 0, "train", 1, (0,))]


def test_groups_end_with_the_epoch():
    run = Run(partitions=5, group=3, epochs=2)
    assert [run.unit(0).partitions] + [dispatched(run.done(0))[0][4] for _ in range(3)] == [
        (0, 1, 2),
        (3, 4),
        (0, 1, 2),
        (3, 4),
    ]


def test_arrays_are_folded_by_a_slot():
    run = Run(partitions=1)
    out = run.done(0, sums={"loss": (2.0, 4.0), "bins": ([1.0, 3.0], 4.0)})
    assert [c.unit.totals for c in out if type(c) is Dispatch] == [{"bins": (Array.of([1.0, 3.0]), 4.0)}]
    run.done(0, values={"bins": 0.75}, memory_key="")
    assert run.machine.trials[0].history == {0: {"loss": 0.5, "bins": 0.75}}


NAN = math.nan
BINS = {"bins": ([1.0, 3.0], 4.0)}


@pytest.mark.parametrize("loss", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_an_epoch_without_a_validation_loss_has_no_metrics_and_its_trial_goes_on(loss, mode):
    run = Run(partitions=1, validation=2, epochs=3, metric="val_accuracy", mode=mode, group=2)
    warned = []
    for epoch, total in enumerate((1.0, loss, loss)):
        run.done(0)
        sums = {"loss": (total, 1.0), "accuracy": (0.0 if mode == "min" else 1.0, 1.0)}
        out = run.done(0, sums=sums | (BINS if epoch else {}), memory_key="")
        warned += [command.text for command in out if type(command) is Warn]
        assert not any(type(c) is Dispatch and c.unit.kind == "fold" for c in out)  # of what no value can come
        run.durable(0, 0, epoch + 1, run.machine.trials[0].states[epoch + 1].ref.attempt)
    trial = run.machine.trials[0]
    assert (trial.status, trial.best, trial.good("val_accuracy")) == ("completed", 0, True)
    assert trial.history[0]["val_loss"] == 1.0
    for epoch in (1, 2):
        assert set(trial.history[epoch]) == {"loss", "val_loss", "val_accuracy", "val_bins"}
        assert all(math.isnan(value) for value in trial.history[epoch].values())
    assert warned == [
        f"trial 0, epoch 2: the validation loss is {loss}; all metrics of such an epoch are NaN",
    ]
    assert fold(run.lines).trials[0].best == 0


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("max", (math.inf, 1.0, 2.0), 2),
        ("max", (1.0, math.inf, math.inf), 0),
        ("max", (-math.inf, math.inf, 1.0), 2),
        ("min", (-math.inf, 2.0, 1.0), 2),
        ("min", (1.0, -math.inf, math.inf), 0),
        ("max", (math.inf, -math.inf, math.inf), None),
        ("min", (-math.inf, math.inf, -math.inf), None),
    ],
)
def test_an_epoch_whose_metric_is_infinite_is_not_the_best(mode, values, best):
    run = Run(partitions=1, validation=1, epochs=3, metric="val_ratio", mode=mode)
    for epoch, value in enumerate(values):
        run.done(0)
        run.done(0, sums={"loss": (1.0, 1.0), "ratio": (value, 1.0)}, memory_key="")
        run.durable(0, 0, epoch + 1, run.machine.trials[0].states[epoch + 1].ref.attempt)
    trial = fold(run.lines).trials[0]
    assert (trial.status, trial.good("val_ratio")) == ("completed", best is not None)
    assert [trial.history[epoch]["val_ratio"] for epoch in range(3)] == list(values)
    if best is not None:
        assert (trial.best, trial.value("val_ratio")) == (best, values[best])


def test_the_best_epoch_is_kept_beside_the_last():
    run = Run(partitions=1, epochs=3, metric="loss")
    for epoch, loss in enumerate((2.0, 1.0, 3.0)):
        run.done(0, sums={"loss": (loss, 1.0)})
        run.durable(0, 0, epoch + 1, epoch + 1)
    assert (run.machine.trials[0].best, run.machine.trials[0].value("loss")) == (1, 1.0)
    assert run.machine.kept() == {Ref(0, 2, 2), Ref(0, 3, 3)}


# -------------------------------------------------------------------------------- slots that go


def test_a_late_answer_of_a_lost_slot_counts_for_nothing():
    run = Run(slots=2)
    assert dispatched(run.lost(0)) == [(1, 0, "train", 0, (0,))]
    assert run.done(0, lease=1, partitions=(0,)) == []
    assert run.durable(0, 0, 1, 1) == [Delete(Ref(0, 1, 1))]
    assert run.machine.trials[0].step == 0


def test_a_trial_goes_back_when_its_newest_state_is_lost_before_it_is_durable():
    run = Run(slots=2, partitions=4)
    run.done(0)
    run.durable(0, 0, 1, 1)
    run.done(0)
    (again,) = [c for c in run.lost(0) if type(c) is Dispatch]
    assert (again.slot, again.unit.start, again.unit.digest, again.unit.memory_key) == (1, Ref(0, 1, 1), "d0/1", "")


def test_a_durable_state_of_a_lost_slot_is_taken_from_the_store():
    run = Run(slots=2, partitions=4)
    run.done(0)
    run.durable(0, 0, 1, 1)
    (again,) = [c for c in run.lost(0) if type(c) is Dispatch]
    assert (again.unit.start, again.unit.memory_key, again.unit.digest) == (Ref(0, 1, 1), "", "d0/1")


def test_a_state_that_became_durable_after_its_maker_was_lost_is_used():
    run = Run(slots=2, partitions=3)
    run.hop(0, 1)  # slot 1 trains from State 1, which only slot 0 has
    run.lost(0)
    run.durable(0, 0, 1, 1)  # it wrote it all the same
    run.missed(1)
    assert run.machine.trials[0].durable_step == run.machine.trials[0].step == 1
    assert run.unit(1).start == Ref(0, 1, 1)


def test_a_unit_under_way_from_a_lost_state_may_end():
    run = Run(slots=2, partitions=3)
    run.hop(0, 1)
    assert run.lost(0) == []
    assert dispatched(run.done(1)) == [(1, 0, "train", 0, (2,))]


def test_a_unit_from_a_lost_state_that_fails_goes_back():
    run = Run(slots=2, partitions=3)
    run.hop(0, 1)
    run.lost(0)
    assert dispatched(run.missed(1)) == [(1, 0, "train", 0, (0,))]
    assert run.machine.trials[0].step == 0


def test_the_third_lost_slot_makes_a_unit_poison():
    run = Run(trials=2, slots=4, partitions=1)
    for _ in range(3):
        holder = next(n for n in run.machine.slots if run.machine.slots[n].busy and run.unit(n).trial == 0)
        run.lost(holder)
    trial = run.machine.trials[0]
    assert (trial.status, trial.fault) == ("failed", "system") and "poison" in trial.error
    assert not run.machine.trials[1].ended


LATE = "its unit took longer than unit_timeout=600.0 seconds"


def test_a_unit_may_take_as_long_as_it_likes():
    run = Run()
    run.done(0)
    assert run.machine.leases.earliest() is None and not run.machine.due(1e9)
    assert run.give(Tick(at=1e9)) == []


def test_a_slot_that_is_past_unit_timeout_is_replaced_and_its_unit_goes_on_elsewhere():
    run = Run(slots=2, timeouts=Timeouts(unit_timeout=600.0))
    due = run.machine.leases.earliest()
    assert due == 600.0 and run.machine.due(600.0) and not run.machine.due(599.9)
    out = run.give(Tick(at=600.0))
    assert out[0] == Replace(0, LATE)
    assert dispatched(out) == [(1, 0, "train", 0, (0,))]


def test_a_resume_may_change_the_timeouts():
    run = Run(timeouts=Timeouts(unit_timeout=600.0))
    run.at = 10.0
    run.give(Resumed(at=10.0))
    run.join(0)
    assert run.machine.leases.earliest() == 610.0
    run.give(Resumed(at=10.0, timeouts=Timeouts(unit_timeout=5.0)))
    run.join(1)
    assert run.machine.leases.earliest() == 15.0 and run.machine.spec.timeouts.unit_timeout == 5.0
    run.give(Resumed(at=10.0, timeouts=Timeouts()))
    run.join(2)
    assert run.machine.leases.earliest() is None


def test_a_slot_that_is_late_with_a_revoked_unit_is_replaced_too():
    """Bug: the deadline went with the lease, so such a slot was kept for ever."""
    run = Run(
        slots=2,
        timeouts=Timeouts(unit_timeout=600.0),
        partitions=3,
        epochs=2,
    )
    for _ in range(3):
        run.done(0)  # at last the epoch's end, owed by slot 0
    run.hop(0, 1)
    assert run.unit(1).epoch == 1
    run.lost(0)  # back to the start; slot 1 works for nothing
    assert not run.machine.leases and run.machine.slots[1].busy
    due = run.machine.leases.earliest()
    assert due is not None
    assert run.give(Tick(at=due))[0] == Replace(1, LATE)


def test_a_late_answer_of_a_slot_that_stays_gives_its_memory_back():
    run = Run(slots=2, partitions=3, epochs=2)
    for _ in range(3):
        run.done(0)
    run.hop(0, 1)
    lease = run.machine.slots[1].busy
    run.lost(0)  # back to the start: what slot 1 does is for nothing
    out = run.done(1, lease=lease, partitions=(1,))
    assert out[0] == Release(1, f"m{lease}")
    assert run.machine.trials[0].step == 0 and dispatched(out) == [(1, 0, "train", 0, (0,))]


def test_a_validation_of_a_state_that_is_gone_is_done_again():
    run = Run(slots=3, partitions=1, validation=2, epochs=2)
    run.done(0)
    other = next(slot for slot in (1, 2) if run.unit(slot).kind == "validate")
    unit = run.unit(other)
    run.lost(0)  # which alone had the State that is validated
    assert not run.machine.trials[0].validation_leases
    run.done(other, lease=unit.lease, partitions=unit.partitions, memory_key="", sums={"loss": (9.0, 1.0)})
    assert run.machine.trials[0].epochs[0].validate == {}


def test_a_fold_under_way_survives_its_trial_going_back():
    """Bug: going back dropped the validation's sums, and the fold's answer made an epoch without them."""
    run = Run(slots=2, partitions=1, validation=2)
    sums = {"loss": (2.0, 1.0), "bins": ([1.0], 1.0)}
    run.done(0, sums=sums)
    run.done(0, sums=sums, memory_key="")
    run.done(1, sums=sums, memory_key="")
    assert run.unit(1).kind == "fold"
    run.lost(0)  # which had the only State
    run.done(1, values={"bins": 1.0, "val_bins": 1.0}, memory_key="")
    assert set(run.machine.trials[0].history[0]) == {"loss", "val_loss", "bins", "val_bins"}


def test_an_epoch_done_again_for_its_states_is_not_counted_again():
    run = Run(slots=2, partitions=1, epochs=2)
    run.done(0)
    assert 0 in run.machine.trials[0].history
    run.lost(0)
    run.done(1, sums={"loss": (99.0, 1.0)})
    assert run.machine.trials[0].history[0] == {"loss": 1.0}


def test_the_last_slot_may_go_and_another_come():
    run = Run()
    run.lost(0)
    assert dispatched(run.join(5)) == [(5, 0, "train", 0, (0,))]


def test_a_late_slot_takes_a_waiting_validation():
    run = Run(slots=1, partitions=1, validation=1)
    run.done(0)
    run.lost(0)
    assert dispatched(run.join(1)) == [(1, 0, "train", 0, (0,))]


# -------------------------------------------------------------------------------- trials that fail


def test_a_user_fault_ends_its_trial_and_not_the_run():
    run = Run(trials=2)
    assert dispatched(run.failed(0, "user")) == [(0, 1, "train", 0, (1,))]
    run.done(0)
    run.done(0)
    assert run.durable(0, 1, 2, 3)[-1] == Finish("partial")


def test_a_trial_that_fails_while_its_validation_runs():
    run = Run(slots=2, epochs=2, partitions=1, validation=1, metric="val_loss")
    run.done(0)
    run.durable(0, 0, 1, 1)
    checking = 0 if run.unit(0).kind == "validate" else 1
    out = run.failed(1 - checking, "data")
    assert Finish("failed") in out
    assert run.done(checking, lease=run.machine.slots[checking].busy, partitions=(0,), memory_key="") == []
    assert run.machine.trials[0].history == {} and run.machine.kept() == {Ref(0, 1, 1)}


def test_a_failed_trial_keeps_no_more_than_the_last_and_the_best():
    """Bug: what awaited validation was kept for ever."""
    run = Run(slots=1, epochs=3, partitions=1, validation=1, metric="val_loss")
    for step in (1, 2):
        while run.unit(0).kind != "train":
            run.done(0, memory_key="")
        lease = run.unit(0).lease
        run.done(0)
        run.durable(0, 0, step, lease)
    run.failed(0, "user")
    assert len(run.machine.kept()) <= 2


def test_a_metric_that_changes_its_shape_is_its_trials_fault():
    """Bug: it ended the driver."""
    run = Run(trials=2)
    run.done(0, sums={"m": ([1.0], 1.0)})
    out = run.done(0, sums={"m": ([1.0, 2.0], 1.0)})
    trial = run.machine.trials[0]
    assert trial.fault == "user" and "metric m, partition 1: an array of 2, but an array of 1" in trial.error
    assert dispatched(out) == [(0, 1, "train", 0, (1,))]


def test_an_answer_for_other_partitions_does_not_count():
    run = Run()
    lease = run.unit(0).lease
    out = run.done(0, lease=lease, partitions=(1,))
    assert out[0] == Release(0, f"m{lease}")
    assert deferred(out) == [(0, 1.0, "system")]
    assert run.machine.trials[0].step == 0
    assert dispatched(run.tick()) == [(0, 0, "train", 0, (0,))]


def test_another_digest_for_the_same_step_is_a_defect():
    run = Run(slots=2, partitions=3)
    run.done(0)
    run.durable(0, 0, 1, 1)
    run.done(0)
    run.durable(9, 0, 2, 77, digest="x")  # a stray made step 2 as well
    (warning,) = [c for c in run.durable(0, 0, 2, 2) if type(c) is Warn]
    assert warning.defect and "trial 0, step 2" in warning.text


# -------------------------------------------------------------------------------- preflight


def faulty(slot, trial):
    return Checked(at=0.0, slot=slot, trial=trial, faults=(f"bad {trial}",), names=())


def test_preflight_tries_three_trials_and_tells_all_faults_once():
    run = Run(trials=5, checked=False)
    assert run.give(faulty(0, 0)) == [Check(at=0.0, slot=0, trial=1)]
    run.give(faulty(0, 1))
    assert run.give(faulty(0, 2)) == [Finish("failed")]
    assert run.machine.faults == [f"trial {n}, config {run.machine.trials[n].config}: bad {n}" for n in range(3)]
    assert run.give(Finished(at=0.0, status="failed")) == []


def test_a_fault_of_several_trials_is_reported_once_with_its_trials():
    run = Run(trials=5, checked=False)
    for trial in range(3):
        run.give(Checked(at=0.0, slot=0, trial=trial, faults=("no label",), names=(), trace=f"Traceback {trial}"))
    assert run.machine.faults == ["trials 0, 1, 2: no label"]
    assert [(trial.error, trial.trace) for trial in run.machine.trials.values()][1:4] == [
        ("no label", "Traceback 1"),
        ("no label", "Traceback 2"),
        ("", ""),
    ]


def test_warnings_are_kept_by_place_and_category_with_their_trials():
    run = Run(trials=2, checked=False)
    one, other = Warned("UserWarning: odd", "train.py, line 3"), Warned("UserWarning: odd", "train.py, line 9")
    kind = Warned("RuntimeWarning: odd", "train.py, line 3")
    run.give(Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",), warnings=(one,)))
    run.done(0, warnings=(one, other, kind))
    assert list(run.machine.warnings.values()) == [(each.text, {0}) for each in (one, other, kind)]
    assert fold(run.lines).warnings == run.machine.warnings


def test_notes_of_preflight_are_journaled():
    run = Run(trials=2, checked=False)
    notes, advice = ("drawn", "counted"), ("rounds are longer than partitions",)
    out = run.give(Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",), notes=notes, advice=advice))
    texts = ["not exact: drawn; counted", *advice]
    assert [command.text for command in out if type(command) is Warn] == texts
    assert fold(run.lines).warnings == {("preflight", text.partition(":")[0]): (text, {0}) for text in texts}


def test_finish_is_commanded_once():
    """Bug: each event between Finish and Finished told it again."""
    run = Run(partitions=1)
    run.done(0)
    assert Finish("completed") in run.durable(0, 0, 1, 1)
    assert run.join(7) == []


def test_a_killed_driver_finishes_again():
    run = Run(partitions=1)
    run.done(0)
    run.durable(0, 0, 1, 1)
    assert fold(run.lines).handle(Resumed(at=1.0)) == [Finish("completed")]


def test_preflight_passes_with_one_fit_trial():
    run = Run(trials=2, checked=False)
    run.give(faulty(0, 0))
    out = run.give(Checked(at=0.0, slot=0, trial=1, faults=(), names=("loss",)))
    assert dispatched(out) == [(0, 1, "train", 0, (1,))]


def test_the_search_may_end_after_its_last_trial_was_refused():
    """Bug: nothing ever happened then."""
    machine = Machine(RunSpec(epochs=1, partitions=1, validation=0))
    machine.handle(Began(at=0.0, spec=machine.spec))
    machine.handle(Proposed(at=0.0, trial=0, config={}))
    machine.handle(Joined(at=0.0, slot=0, host="h", pid=1))
    assert machine.handle(faulty(0, 0)) == []
    assert machine.handle(Exhausted(at=0.0)) == [Finish("failed")]


def test_a_trial_may_begin_elsewhere_in_the_rotation():
    run = Run(trials=1, partitions=4, checked=False, offsets=[6])
    out = run.give(Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",)))
    assert dispatched(out) == [(0, 0, "train", 0, (2,))]
    assert dispatched(run.done(0)) == [(0, 0, "train", 0, (3,))]
    assert dispatched(run.done(0)) == [(0, 0, "train", 0, (0,))]


def test_a_trial_whose_check_ends_three_slots_is_poison():
    run = Run(trials=1, checked=False)
    for slot in (1, 2):
        run.lost(slot - 1)
        assert run.join(slot) == [Check(at=0.0, slot=slot, trial=0)]
    assert run.lost(2) == [Finish("failed")]
    assert "poison: building trial 0 ended 3 workers" in run.machine.faults[0]


# -------------------------------------------------------------------------------- another driver


def test_resume_goes_on_from_what_is_durable():
    run = Run(slots=2, trials=2, partitions=3)
    run.done(0)
    run.done(1)
    run.durable(0, 0, 1, 1)
    machine = fold(run.lines)
    machine.handle(Resumed(at=9.0))
    assert (machine.slots, len(machine.leases)) == ({}, 0)
    out = machine.handle(Joined(at=9.0, slot=0, host="h", pid=1))
    out += machine.handle(Joined(at=9.0, slot=1, host="h", pid=1))
    assert [(c.unit.trial, c.unit.start, c.unit.memory_key) for c in out] == [(1, None, ""), (0, Ref(0, 1, 1), "")]
    assert machine.handle(Done(at=9.0, slot=0, lease=3, parts=(), seconds=1.0)) == []


def test_a_state_that_is_gone_is_made_again_also_of_a_trial_that_was_complete():
    run = Run(partitions=2)
    run.done(0)
    run.durable(0, 0, 1, 1)
    run.done(0)
    run.durable(0, 0, 2, 2)
    assert run.machine.trials[0].status == "completed"
    machine = fold(run.lines)
    assert machine.handle(Resumed(at=9.0, gone=(Ref(0, 2, 2),))) == []
    trial = machine.trials[0]
    assert (trial.status, trial.durable_step, trial.states) == ("waiting", 0, {})
    (again,) = machine.handle(Joined(at=9.0, slot=0, host="h", pid=1))
    assert (again.unit.start, again.unit.partitions, again.unit.lease) == (None, (0,), 3)


def test_a_run_that_had_ended_goes_on_where_a_state_is_gone():
    run = Run(partitions=1)
    run.done(0)
    assert Finish("completed") in run.durable(0, 0, 1, 1)
    run.give(Finished(at=0.0, status="completed"))
    assert fold(run.lines).handle(Resumed(at=9.0, gone=(Ref(0, 9, 9),))) == []
    machine = fold(run.lines)
    assert machine.handle(Resumed(at=9.0, gone=(Ref(0, 1, 1),))) == []
    assert (machine.status, machine.trials[0].status) == ("running", "waiting")
    (again,) = machine.handle(Joined(at=9.0, slot=1, host="h", pid=1))
    assert (again.unit.start, again.unit.partitions, again.unit.lease) == (None, (0,), 2)
    again = fold([*run.lines, Resumed(at=9.0, gone=(Ref(0, 1, 1),))])
    assert (again.status, again.open) == ("running", 1)


def test_a_failed_trial_whose_state_is_gone_keeps_a_run_ended():
    run = Run(partitions=2)
    run.done(0)
    run.durable(0, 0, 1, 1)
    run.failed(0, "user")
    run.give(Finished(at=0.0, status="failed"))
    machine = fold(run.lines)
    machine.handle(Resumed(at=9.0, gone=(Ref(0, 1, 1),)))
    assert (machine.status, machine.open) == ("failed", 0)


def test_a_journal_begins_with_began():
    with pytest.raises(ValueError, match="begins with Began, not Tick"):
        fold([Tick(at=0.0)])
    with pytest.raises(ValueError, match="empty journal"):
        fold([])


# -------------------------------------------------------------------------------- States that are not stored


def stored_late(**more):
    """One trial of two partitions and two epochs on slot 0, whose first epoch is over at 10 seconds."""
    run = Run(epochs=2, timeouts=Timeouts(durable_timeout=60.0), **more)
    run.done(0)
    run.at = 10.0
    run.done(0)
    return run


def test_a_slot_that_does_not_store_an_epochs_end_in_time_is_replaced_and_its_unit_is_not_to_blame():
    run = stored_late(slots=2)
    assert run.machine.earliest() == 70.0 and not run.machine.due(69.9) and run.machine.due(70.0)
    assert run.unit(0).epoch == 1
    reason = "it stored nothing for durable_timeout=60 seconds, though State 0-2-2 was to be stored"
    out = run.give(Tick(at=70.0))
    assert out[0] == Replace(0, reason, "store")
    assert dispatched(out) == [(1, 0, "train", 0, (0,))]  # from the start, as nothing was stored
    assert run.machine.trials[0].strikes == {}
    assert run.machine.earliest() is None


def test_a_state_that_is_stored_in_time_is_not_awaited():
    run = stored_late()
    run.durable(0, 0, 2, 2)
    assert run.machine.earliest() is None


def test_a_state_in_the_middle_of_an_epoch_need_not_be_stored():
    run = Run(partitions=3, timeouts=Timeouts(durable_timeout=60.0))
    run.done(0)
    assert run.machine.earliest() is None


def test_no_slot_is_replaced_while_the_store_is_away():
    run = stored_late()
    run.give(StoreAway(at=30.0, slot=0, error="it does not answer"))
    assert run.machine.earliest() is None
    run.give(StoreBack(at=5000.0, slot=0))
    assert run.machine.earliest() == 5060.0


def test_a_slot_that_stores_slowly_but_steadily_is_not_late():
    run = stored_late()
    run.at = 50.0
    run.durable(0, 0, 1, 1)  # in the middle of the epoch
    assert run.machine.earliest() == 110.0 and awaited(run.machine._run.durability) == {"0-2-2": (0, 110.0)}
    run.done(0)
    run.done(0)
    run.at = 109.0
    run.durable(0, 0, 2, 2)
    assert run.machine.earliest() == 169.0


def test_a_state_that_was_cut_is_not_awaited():
    run = Run(partitions=1, epochs=3, slots=2, timeouts=Timeouts(durable_timeout=60.0))
    run.hop(0, to=1)  # State 1 is on slot 0, State 2 will be on slot 1
    run.done(1)
    assert run.machine.earliest() == 60.0
    run.lost(0)  # both are to be made again
    assert run.machine.earliest() is None


def test_a_trial_whose_states_nobody_stores_ends_and_says_what_to_do():
    run = Run(partitions=1, epochs=2, timeouts=Timeouts(durable_timeout=600.0))
    trial = run.machine.trials[0]
    for slot in range(3):
        assert not trial.ended
        run.at += 10.0
        run.done(slot)
        assert Replace in map(type, run.tick())
        run.join(slot + 1)
    assert (trial.status, trial.fault, trial.strikes) == ("failed", "store", {})
    assert "3 workers in a row" in trial.error and "durable_timeout=600" in trial.error
    run.give(Retried(at=run.at, trial=0))
    assert not trial.ended and trial.unstored == 0


def test_two_slots_that_are_late_with_states_of_equal_age():
    run = Run(trials=2, partitions=1, epochs=2, timeouts=Timeouts(durable_timeout=60.0))
    run.give(StoreAway(at=10.0, slot=0, error="it does not answer"))
    run.at = 20.0
    run.done(0)
    run.at = 30.0
    run.done(0)
    run.give(StoreBack(at=50.0, slot=0))
    assert type(run.tick()[0]) is Replace


def test_a_fold_ends_no_slot_by_itself():
    """What is over by a Tick is decided once; the journal has it."""
    run = stored_late(slots=2)
    late = Tick(at=70.0)
    again = fold([*run.lines, late])
    assert sorted(again.slots) == [0, 1]
    run.give(late)
    (lost,) = [line for line in run.lines if type(line) is Lost]
    assert (lost.slot, lost.fault) == (0, "store") and sorted(fold(run.lines).slots) == [1]


def test_a_resume_may_give_another_time_to_store_and_awaits_nothing_of_slots_that_are_gone():
    run = stored_late()
    run.give(Resumed(at=50.0, timeouts=Timeouts(durable_timeout=5.0)))
    assert run.machine.earliest() is None
    run.join(1)
    run.done(1)
    run.at = 100.0
    run.done(1)
    assert run.machine.earliest() == 105.0


def test_a_state_whose_validation_is_not_wanted_any_longer_is_released():
    """Bug: it stayed in the memory of its maker to the end of the run."""
    run = Run(slots=2, epochs=3, partitions=1, validation=1)
    first = run.unit(0).lease
    run.done(0)
    run.durable(0, 0, 1, first)
    trains = next(slot for slot in (0, 1) if run.unit(slot).kind == "train")  # the other one validates the first State
    second = run.unit(trains).lease
    run.done(trains)
    run.give(Stopped(at=0.0, trial=0, reason="enough"))
    assert Release(0, f"m{first}") in run.durable(trains, 0, 2, second)
