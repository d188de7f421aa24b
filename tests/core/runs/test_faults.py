"""What follows from a fault: given these events, expect these commands."""

import copy

import pytest

from hopyard.core.runs.events import (
    Check,
    Checked,
    Delete,
    Dispatch,
    Done,
    Failed,
    Finish,
    Finished,
    Forgotten,
    Joined,
    Keep,
    Release,
    Replace,
    Resumed,
    Retried,
    StoreAway,
    StoreBack,
    Warn,
)
from hopyard.core.runs.faults import rules
from hopyard.core.runs.machine import fold
from hopyard.core.runs.preflight import CHECKS
from hopyard.spec import Part, Ref, packed
from hopyard.stopping import ASHA, Hyperband
from hopyard.text import numbered
from machines import Run, deferred, dispatched
from snapshots import snapshot


def of(kind, commands):
    return [command for command in commands if type(command) is kind]


# -------------------------------------------------------------------------------- waits


def test_a_fault_of_the_system_waits_longer_each_time_and_other_trials_have_the_slot_meanwhile():
    run = Run(trials=2, partitions=4, retries=3)
    out = run.failed(0)
    assert deferred(out) == [(0, 1.0, "system")]
    assert dispatched(out) == [(0, 1, "train", 0, (2,))]
    assert run.machine.earliest() == 1.0 and run.machine.trials[0].waits_for == "system: broke"
    run.at = 1.0
    run.tick()
    while run.unit(0).trial != 0:
        run.done(0)
    assert deferred(run.failed(0)) == [(0, 3.0, "system")]


def test_the_partitions_of_a_unit_are_named_as_ranges():
    """Bug: an error named each of hundreds."""
    run = Run(partitions=64, group=64, retries=0)
    run.failed(0)
    assert (
        run.machine.trials[0].error
        == "its unit (train, epoch 1, partitions 0–63) failed 1 times, the last one so: broke"
    )
    assert numbered("partition", (62, 63, 0, 1, 5)) == "partitions 62–63, 0–1, 5"
    assert numbered("partition", (7,)) == "partition 7"
    assert numbered("partition", range(0, 64, 2)) == "partitions 0, 2, 4, 6, 8, … (32 in all)"


def test_the_waits_are_1_2_4_seconds_up_to_minutes_and_then_the_trial_ends():
    run = Run(retries=12)
    waits = []
    for _ in range(12):
        begin = run.at
        ((_, until, _),) = deferred(run.failed(0))
        waits.append(until - begin)
        run.tick()
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0, 300.0]
    assert run.failed(0) == [Finish("failed")]
    trial = run.machine.trials[0]
    assert trial.fault == "system" and trial.error.endswith("failed 13 times, the last one so: broke")


def test_a_fault_of_the_store_never_ends_a_trial():
    run = Run()
    for _ in range(50):
        assert deferred(run.failed(0, "store"))
        run.tick()
    assert not run.machine.trials[0].ended and run.machine.trials[0].strikes != {}


def test_progress_makes_the_next_wait_short_again_and_what_is_only_done_again_does_not():
    run = Run(partitions=3, strikes=9)
    run.failed(0)
    run.tick()
    run.done(0)  # step 1: progress
    assert deferred(run.failed(0))[0][1] - run.at == 1.0
    run.tick()
    run.lost(0)  # with State 1: back to the start
    run.join(1)
    run.done(1)  # step 1 again
    assert deferred(run.failed(1))[0][1] - run.at == 2.0


def test_a_unit_that_ends_well_clears_what_was_counted_against_it():
    run = Run(partitions=2, retries=1, epochs=4)
    for _ in range(6):  # each unit fails once
        run.failed(0)
        run.tick()
        run.done(0)
    assert not run.machine.trials[0].ended


def test_a_poison_unit_behind_others_that_end_well_ends_its_trial():
    """Clearing with every unit that ends well would go on for ever: nothing is durable, so all is done again."""
    run = Run(partitions=3)
    for slot in range(3):
        run.done(slot)
        run.lost(slot)
        if run.machine.trials[0].ended:
            break
        run.join(slot + 1)
    assert "poison" in run.machine.trials[0].error


def test_validations_and_folds_wait_too():
    run = Run(partitions=1, validation=1)
    sums = {"loss": (2.0, 1.0), "bins": ([1.0], 1.0)}
    run.done(0, sums=sums)
    assert run.unit(0).kind == "validate"
    assert deferred(run.failed(0)) == [(0, 1.0, "system")]
    assert dispatched(run.tick()) == [(0, 0, "validate", 0, (0,))]
    run.done(0, sums=sums, memory_key="")
    assert run.unit(0).kind == "fold"
    assert deferred(run.failed(0))[0][1] - run.at == 1.0
    assert dispatched(run.join(1)) == []
    assert dispatched(run.tick()) == [(0, 0, "fold", 0, ())]


def test_a_wait_does_not_hold_up_who_resumes():
    run = Run()
    run.failed(0)
    run.give(Resumed(at=0.5))
    assert dispatched(run.join(7)) == [(7, 0, "train", 0, (0,))]


def test_trials_waiting_for_the_store_resume_when_it_is_back():
    run = Run(trials=2)
    for _ in range(6):
        run.give(StoreAway(at=run.at, slot=0, error="FSTimeoutError"))
        while run.unit(0).trial != 0:
            run.failed(0, "store")
            run.tick()
        run.failed(0, "store")
    assert run.machine.slots[0].away == "FSTimeoutError"
    run.give(StoreBack(at=run.at, slot=0))
    assert run.machine.slots[0].away == "" and not any(trial.until for trial in run.machine.trials.values())


@pytest.mark.parametrize("fault", ["user", "data"])
def test_faults_of_recipe_and_rows_end_the_trial(fault):
    run = Run()
    assert run.failed(0, fault) == [Finish("failed")]
    assert run.machine.trials[0].fault == fault


# -------------------------------------------------------------------------------- a State that nobody can hand over


def hops(**more):
    """Slot 0 made State 1 of trial 0, which slot 1 trains from."""
    run = Run(slots=2, partitions=3, **more)
    run.hop(0, 1)
    assert run.unit(1).start == Ref(0, 1, 1)
    return run


def test_a_state_that_cannot_be_taken_is_stored_by_its_maker_and_its_trial_is_parked():
    run = hops()
    assert run.missed(1) == [Keep(0, Ref(0, 1, 1), "m1")]
    assert not run.machine.trials[0].until  # it waits for the State, not for a time
    assert dispatched(run.join(9)) == []
    out = run.durable(0, 0, 1, 1)
    assert out[0] == Release(0, "m1")
    (again,) = of(Dispatch, out)
    assert (again.unit.start, again.unit.memory_key, again.unit.digest) == (Ref(0, 1, 1), "", "d0/1")
    assert run.machine.trials[0].strikes == {}


def test_the_maker_itself_may_go_on_with_a_parked_state():
    run = Run(slots=2, partitions=3, validation=1, epochs=2)
    run.done(0)
    run.done(0)
    run.done(0)  # the epoch's end: it is validated elsewhere, and trained on
    assert [run.unit(slot).kind for slot in (0, 1)] == ["validate", "train"]
    out = run.missed(1)
    assert of(Keep, out) == [Keep(0, Ref(0, 3, 3), "m3")] and not of(Dispatch, out)
    assert dispatched(run.done(0, memory_key="")) == [(0, 0, "train", 1, (0,))]


def test_a_parked_state_whose_maker_is_lost_is_made_again_without_a_strike():
    run = hops()
    run.missed(1)
    run.lost(0)
    assert run.machine.trials[0].step == 0 and run.machine.trials[0].strikes == {}
    assert run.unit(1).start is None


def test_a_state_that_its_maker_has_lost_as_well_is_made_again():
    run = hops()
    run.missed(1)
    out = run.give(Forgotten(at=0.0, slot=0, ref=Ref(0, 1, 1)))
    assert dispatched(out) == [(0, 0, "train", 0, (0,))]
    assert run.machine.trials[0].strikes == {} and run.machine.trials[0].step == 0


def test_a_state_stored_meanwhile_is_taken_from_the_store():
    run = hops()
    run.durable(0, 0, 1, 1)
    (again,) = of(Dispatch, run.missed(1))
    assert again.unit.digest == "d0/1" and run.machine.trials[0].strikes == {}


def test_a_durable_state_that_the_store_lacks_is_tried_again_and_then_made_again():
    run = Run(slots=1, partitions=3)
    run.done(0)
    run.durable(0, 0, 1, 1)
    run.lost(0)
    run.join(1)
    for wait in (1.0, 2.0):
        begin = run.at
        assert deferred(run.missed(1)) == [(0, begin + wait, "store")]
        assert run.tick() and run.unit(1).start == Ref(0, 1, 1)
    out = run.missed(1)
    assert [warn.text for warn in of(Warn, out)] == ["broke; trial 0 makes it again from the State before it"]
    assert run.unit(1).start is None


def damaged(run, slot, ref):
    """Whatever unit starts from this State finds it damaged in the store, until it is given up; else time passes."""
    for _ in range(4 * rules.UNSTORED):
        if ref not in run.machine.kept():
            return
        standing = run.machine.leases.standing().values()
        if any(at == slot and unit.start == ref for at, unit in standing):
            run.missed(slot)
        else:
            run.tick()
    raise AssertionError(f"{ref} was not given up")


def test_a_state_that_is_given_up_takes_the_training_from_later_ones_with_it():
    run = Run(partitions=2, validation=1, epochs=3, slots=2)
    run.done(0)
    run.done(0)
    run.durable(0, 0, 2, 2)
    trial = run.machine.trials[0]
    trains, checks = (1, 0) if run.unit(0).kind == "validate" else (0, 1)
    assert (run.unit(trains).kind, run.unit(trains).step) == ("train", 2)
    old = run.unit(trains)
    damaged(run, checks, Ref(0, 2, 2))
    assert trial.step == trial.durable_step == 0 and not run.machine.leases.stands(old.lease)
    assert not trial.lease or run.machine.leases.unit(trial.lease).start is None
    run.done(trains, lease=old.lease, partitions=old.partitions)
    assert trial.step == 0 and not trial.states  # its answer does not count


def test_a_state_that_is_given_up_takes_its_validations_with_it():
    run = Run(partitions=1, validation=2, epochs=1, slots=2)
    run.done(0)
    run.durable(0, 0, 1, 1)
    old = run.unit(1)
    assert (old.kind, old.start) == ("validate", Ref(0, 1, 1))
    damaged(run, 0, Ref(0, 1, 1))
    assert not run.machine.leases.stands(old.lease)
    trial = run.machine.trials[0]
    run.done(0)
    run.durable(0, 0, 1, trial.states[1].ref.attempt)
    while not trial.ended:
        run.done(0)
    assert trial.status == "completed" and trial.history == {0: {"loss": 1.0, "val_loss": 1.0}}
    run.done(1, lease=old.lease, partitions=old.partitions)
    run.give(Resumed(at=run.at))


def test_an_answer_for_an_epoch_whose_metrics_are_in_changes_nothing():
    run = Run(partitions=1, validation=1, epochs=1)
    run.done(0)
    run.durable(0, 0, 1, 1)
    machine, unit = run.machine, run.unit(0)
    trial = machine.trials[0]
    trial.add_epoch(0, {"loss": 1.0, "val_loss": 1.0}, machine.spec)
    copied = copy.deepcopy(machine.leases)
    part = Part(0, packed({"loss": (9.0, 1.0)}), 1.0)
    machine.apply(Done(at=0.0, slot=0, lease=unit.lease, parts=(part,), seconds=1.0))
    assert trial.history == {0: {"loss": 1.0, "val_loss": 1.0}}
    machine.leases = copied
    machine.apply(Resumed(at=0.0))
    assert trial.history == {0: {"loss": 1.0, "val_loss": 1.0}}


def test_a_validation_from_a_state_that_cannot_be_taken_is_parked_and_training_goes_on():
    run = Run(slots=2, partitions=1, validation=1, epochs=3)
    run.done(0)
    assert [run.unit(slot).kind for slot in (0, 1)] == ["validate", "train"]
    out = run.missed(0)
    assert of(Keep, out) and not of(Dispatch, out)
    run.done(1)
    assert run.machine.trials[0].step == 2 and run.machine.trials[0].history == {}
    run.durable(0, 0, 1, 1)
    assert run.unit(1).epoch == 1
    out = dispatched(run.done(1, memory_key=""))
    assert (0, "validate", 0) in [(trial, kind, epoch) for _, trial, kind, epoch, _ in out]


# -------------------------------------------------------------------------------- memory


def test_an_out_of_memory_trial_gets_a_new_worker_while_others_rest():
    run = Run(trials=3, slots=3, partitions=4, epochs=2)
    assert [run.unit(slot).trial for slot in range(3)] == [0, 1, 2]
    out = run.failed(0, "memory")
    assert of(Replace, out) == [Replace(0, rules.OUT_OF_MEMORY)]
    assert deferred(out) == [(0, rules.FRESH, "memory")]
    assert dispatched(run.done(1)) == [(1, 1, "train", 0, (3,))]  # nobody rests before the new one is there
    assert dispatched(run.join(3)) == []
    assert dispatched(run.done(1)) == []  # it takes no new unit
    assert dispatched(run.done(2)) == [(3, 0, "train", 0, (0,))]  # alone
    assert run.machine.scheduler.resting == {1, 2}
    out = run.done(3)  # all go on
    assert {trial for _, trial, *_ in dispatched(out)} == {0, 1, 2} and run.machine.scheduler.resting == set()
    assert run.machine.trials[0].strikes == {} and run.machine.trials[0].isolated == ""


def test_the_second_time_ends_the_trial_and_says_what_to_do():
    run = Run(trials=2, slots=1, partitions=2)
    run.failed(0, "memory")
    out = run.join(1)
    assert dispatched(out) == [(1, 0, "train", 0, (0,))]
    out = run.failed(1, "memory")
    assert of(Replace, out) == [Replace(1, rules.OUT_OF_MEMORY)]
    trial = run.machine.trials[0]
    assert (trial.status, trial.fault) == ("failed", "memory")
    assert "smaller batch_size" in trial.error and "fewer workers" in trial.error
    assert dispatched(run.join(2)) == [(2, 1, "train", 0, (1,))]


def test_a_worker_that_the_system_killed_for_memory_counts_as_such():
    run = Run(slots=1)
    assert deferred(run.lost(0, "memory")) == [(0, rules.FRESH, "memory")]
    run.join(1)
    run.lost(1, "memory")
    assert run.machine.trials[0].fault == "memory"


def test_slots_of_another_host_do_not_rest():
    run = Run(trials=3, slots=0, partitions=4, checked=False)
    for slot, host in enumerate(["a", "a", "b"]):
        run.give(Joined(at=0.0, slot=slot, host=host, pid=slot, device="0"))
    run.give(Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",)))
    run.failed(0, "memory", device=True)
    run.give(Joined(at=0.0, slot=3, host="a", pid=3, device="0"))
    assert dispatched(run.done(2)) != [] and run.machine.scheduler.resting == {1, 3}
    assert [trial for _, trial, *_ in dispatched(run.done(1))] == [0]
    assert run.machine.scheduler.resting == {1}


def test_two_trials_without_memory_take_turns():
    run = Run(trials=3, slots=3, partitions=4)
    run.failed(0, "memory")
    run.failed(1, "memory")
    run.join(3)
    run.join(4)
    assert dispatched(run.done(2)) == [(3, 0, "train", 0, (0,))]
    assert dispatched(run.done(3))[0] == (4, 1, "train", 0, (2,)) and run.machine.scheduler.resting == {2, 3}
    assert {trial for _, trial, *_ in dispatched(run.done(4))} == {0, 1, 2}


def test_when_no_new_worker_comes_any_other_tries_it():
    run = Run(trials=2, slots=2, partitions=2)
    run.failed(0, "memory")
    run.done(1)
    run.done(1)
    run.durable(1, 1, 2, run.machine.trials[1].states[2].ref.attempt)
    assert not run.machine.slots[1].busy
    assert dispatched(run.tick()) == [(1, 0, "train", 0, (0,))]


def test_memory_that_runs_out_in_preflight_is_tried_in_a_new_worker():
    run = Run(trials=1, slots=1, checked=False)
    out = run.give(Checked(at=0.0, slot=0, trial=0, faults=("MemoryError",), names=(), fault="memory"))
    assert of(Replace, out) == [Replace(0, rules.OUT_OF_MEMORY)]
    assert run.join(1) == [Check(at=0.0, slot=1, trial=0)]
    out = run.give(Checked(at=0.0, slot=1, trial=0, faults=("MemoryError",), names=(), fault="memory"))
    assert Finish("failed") in out and run.machine.trials[0].fault == "memory"


@pytest.mark.parametrize(("on_device", "named"), [(True, "device"), (False, "host")])
def test_preflight_tells_whose_memory_ran_out(on_device, named):
    """Bug: it was the host's in any case."""
    run = Run(trials=1, slots=1, checked=False)
    for slot in (0, 1):
        error = Checked(
            at=0.0, slot=slot, trial=0, faults=("out of memory",), names=(), fault="memory", device=on_device
        )
        run.give(error)
        run.join(slot + 1)
    assert f"fewer workers to each {named}" in run.machine.trials[0].error


def test_a_check_that_the_system_disturbed_is_done_again():
    run = Run(trials=1, checked=False)
    out = run.give(Checked(at=0.0, slot=0, trial=0, faults=("ConnectionResetError",), names=(), fault="system"))
    assert deferred(out) == [(0, 1.0, "system")] and not of(Check, out)
    assert run.tick() == [Check(at=1.0, slot=0, trial=0)]
    assert dispatched(run.give(Checked(at=1.0, slot=0, trial=0, faults=(), names=("loss",)))) != []


# -------------------------------------------------------------------------------- a host without its rows


def test_a_slot_that_cannot_keep_its_rows_is_no_strike():
    run = Run(slots=5, strikes=2)
    for slot in range(4):
        out = run.lost(slot, "data")
        assert len(dispatched(out)) == 1
    assert run.machine.trials[0].strikes == {} and not run.machine.trials[0].ended


# -------------------------------------------------------------------------------- tried again


def ended(fault):
    """A run of one trial that failed in its second epoch, after validation of the first."""
    run = Run(partitions=2, validation=1, epochs=2, retries=0, metric="val_loss")
    for step in (1, 2, 3):
        while run.unit(0).kind != "train":
            run.done(0, memory_key="")
        lease = run.unit(0).lease
        run.done(0)
        run.durable(0, 0, step, lease)
    while run.unit(0).kind != "train":
        run.done(0, memory_key="")
    out = run.failed(0, fault)
    run.give(Finished(at=0.0, status=of(Finish, out)[0].status))
    return run


def test_a_failed_trial_goes_on_from_its_last_durable_state_when_the_user_asks():
    run = ended("system")
    assert Ref(0, 3, run.machine.trials[0].states[3].ref.attempt) in run.machine.kept()
    run.give(Resumed(at=1.0))
    run.give(Retried(at=1.0, trial=0))
    assert run.machine.trials[0].strikes == {} and run.machine.status == "running"
    run.join(5)
    assert run.unit(5).start.step == 3 and run.unit(5).partitions == (1,)
    lease = run.unit(5).lease
    run.done(5)
    out = run.durable(5, 0, 4, lease)
    while run.machine.slots[5].busy:
        out += run.done(5, memory_key="")
    assert Finish("completed") in out
    assert run.machine.trials[0].history[1] == {"loss": 1.0, "val_loss": 1.0}  # with the sums of before
    assert run.give(Finished(at=2.0, status="completed")) == []


def begun_anew():
    """A trial with stored States that begins anew, and these States."""
    run = ended("user")
    stored = run.machine.kept()
    run.give(Resumed(at=1.0))
    return run, stored, run.give(Retried(at=1.0, trial=0, recipe="abc"))


def test_states_are_kept_until_the_first_one_of_another_attempt_is_durable():
    """Bug: they were deleted at once."""
    run, stored, out = begun_anew()
    assert len(stored) == 2 and of(Delete, out) == [] and run.machine.kept() == stored
    trial = run.machine.trials[0]
    assert (trial.stored.best, trial.stored.durable_step, trial.good("loss")) == (0, 3, False)
    run.join(5)
    run.give(Checked(at=1.0, slot=5, trial=0, faults=(), names=("loss",)))
    lease = run.unit(5).lease
    assert of(Delete, run.done(5)) == [] and run.machine.kept() == stored
    out = run.durable(5, 0, 1, lease, digest="of the other recipe")
    assert {c.ref for c in of(Delete, out)} == stored and run.machine.kept() == {Ref(0, 1, lease)}
    assert trial.stored is trial and run.machine.defects == []


def test_states_are_kept_of_a_trial_that_fails_again_before_it_has_one():
    run, stored, _ = begun_anew()
    run.join(5)
    run.give(Checked(at=1.0, slot=5, trial=0, faults=(), names=("loss",)))
    run.done(5)
    out = run.failed(5, "user")
    assert of(Finish, out) == [Finish("failed")] and run.machine.kept() == stored
    run.give(Finished(at=1.0, status="failed"))
    run.give(Resumed(at=2.0, gone=(min(stored, key=str),)))
    assert of(Delete, run.give(Retried(at=2.0, trial=0, recipe="def"))) == []
    assert run.machine.kept() == {max(stored, key=str)}  # those of the first attempt


def test_leases_that_a_lost_end_of_the_journal_may_have_used_are_never_given_out():
    run = Run(slots=1, trials=1, epochs=3, metric="loss")
    lease = [run.unit(0).lease, run.done(0)][0]
    run.durable(0, 0, 1, lease)
    last = run.machine.leases.last
    run.give(Resumed(at=run.at, skipped=1000))
    assert run.machine.leases.last == last + 1000
    run.join(1)
    assert run.unit(1).lease > last + 1000 and run.unit(1).start == Ref(0, 1, lease)


def uploading():
    """A trial whose State at the end of its first epoch is on its way to the store; its second epoch is under way."""
    run = Run(partitions=2, epochs=3, metric="loss", mode="min")
    lease = [run.unit(0).lease, run.done(0)][0]
    run.durable(0, 0, 1, lease)
    lease = [run.unit(0).lease, run.done(0)][0]
    run.done(0)  # partition 0 of the second epoch
    return run, Ref(0, 2, lease)


def test_a_failed_trial_keeps_the_states_that_are_on_their_way_to_the_store():
    """Bug: they were forgotten, so that a trial had the metrics of its epochs, and not their models."""
    run, ref = uploading()
    trial = run.machine.trials[0]
    out = run.failed(0, "user")
    assert (trial.status, trial.ended, list(trial.history), of(Finish, out)) == ("failed", True, [0], [])
    assert run.machine.spare(9.0, 0.0) == [] and dispatched(out) == []  # its worker is not given back
    out = run.durable(0, 0, 2, ref.attempt)
    assert of(Finish, out) == [Finish("failed")] and ref not in {c.ref for c in of(Delete, out)}
    assert (trial.durable_step, run.machine.kept(), trial.storing) == (2, {ref}, False)
    assert [c.memory_key for c in of(Release, out)] == [f"m{ref.attempt + 1}"]  # the newest State, which nobody needs


@pytest.mark.parametrize("end", ["lost", "forgotten"])
def test_a_failed_trial_does_not_wait_for_a_state_that_is_lost(end):
    run, ref = uploading()
    run.join(1)
    run.failed(0, "user")
    out = {
        "lost": lambda: run.lost(0),
        "forgotten": lambda: run.give(Forgotten(at=0.0, slot=0, ref=ref)),
    }[end]()
    assert of(Finish, out) == [Finish("failed")] and run.machine.trials[0].durable_step == 1


def test_a_failed_trial_makes_the_states_again_that_its_driver_took_with_it():
    run, _ = uploading()
    run.failed(0, "user")
    run.give(Resumed(at=0.0))
    trial = run.machine.trials[0]
    assert (trial.status, trial.step, list(trial.history), run.machine.open) == ("waiting", 1, [0], 1)
    run.join(1)
    lease = run.unit(1).lease
    run.done(1)
    run.failed(1, "user")
    out = run.durable(1, 0, 2, lease)
    assert of(Finish, out) == [Finish("failed")] and run.machine.kept() == {Ref(0, 2, lease)}


def test_a_worker_that_stores_no_state_of_a_failed_trial_is_replaced():
    run, _ = uploading()
    run.failed(0, "user")
    out = run.tick()
    assert of(Replace, out)[0].fault == "store" and of(Finish, out) == [Finish("failed")]


def test_a_retry_by_the_user_is_decided_at_once():
    """Bug: the run was over, and its status decided, after the first of several trials that it was to try again."""
    run = Run(trials=2, slots=2, partitions=1, retries=0, max_time=10.0, metric="loss", mode="min")
    for slot in (0, 1):
        run.failed(slot)
    run.give(Finished(at=9.0, status="failed"))
    run.at = 9.0
    run.give(Resumed(at=20.0))
    at = 30.0  # the time is over when they are retried
    lines = [Retried(at=at, trial=0), Retried(at=at, trial=1)]
    assert run.machine.handle(lines[0], last=False) == []
    out = run.machine.handle(lines[1])
    assert [type(c).__name__ for c in out] == ["Closed", "Stopped", "Stopped", "Finish"]


def test_with_another_recipe_a_trial_begins_anew():
    run, _, _ = begun_anew()
    trial = run.machine.trials[0]
    assert (trial.recipe, trial.history, trial.states, trial.digests, trial.durable_step) == ("abc", {}, {}, {}, 0)
    assert run.join(5) == [Check(at=0.0, slot=5, trial=0)]
    run.give(Checked(at=1.0, slot=5, trial=0, faults=(), names=("loss",)))
    assert run.unit(5).start is None


def test_with_another_recipe_other_digests_are_no_defect():
    run = Run(partitions=4)
    run.done(0)
    run.durable(0, 0, 1, 1)
    run.done(0)
    run.durable(0, 0, 2, 2)
    run.failed(0, "user")
    run.give(Finished(at=0.0, status="failed"))
    run.give(Resumed(at=1.0))
    run.give(Retried(at=1.0, trial=0, recipe="abc"))
    run.join(1)
    run.give(Checked(at=1.0, slot=1, trial=0, faults=(), names=("loss",)))
    out = []
    for _ in range(2):
        lease, step = run.unit(1).lease, run.unit(1).step + 1
        run.done(1)
        out += run.durable(1, 0, step, lease, digest="of the other recipe")
    assert of(Warn, out) == [] and run.machine.defects == []


def some_ended(trials):
    """The recipe ended all trials but the last two: the system ended one of them, the other is complete."""
    run = Run(trials=trials, partitions=2, retries=0)
    while standing := run.machine.leases.standing():
        lease, (slot, unit) = next(iter(standing.items()))
        if unit.trial < trials - 2:
            run.failed(slot, "user")
        elif unit.trial == trials - 2 and unit.step == 1:
            run.failed(slot)
        else:
            run.done(slot)
            run.durable(slot, unit.trial, unit.step + 1, lease)
    run.give(Finished(at=0.0, status="partial"))
    run.give(Resumed(at=1.0))
    run.give(Retried(at=1.0, trial=trials - 2))
    for number in range(trials - 2):
        run.give(Retried(at=1.0, trial=number, recipe="abc"))
    return run


@pytest.mark.parametrize("trials", [3, 5, 6])
def test_another_recipe_that_is_not_fit_ends_only_the_trials_that_it_is_for(trials):
    run = some_ended(trials)
    out = run.join(7)
    refused = 0
    while found := of(Check, out):
        good = found[0].trial >= trials - 2
        names, wrong = (("loss",), ()) if good else ((), ("NameError",))
        out = run.give(Checked(at=1.0, slot=7, trial=found[0].trial, faults=wrong, names=names))
        refused += not good
    assert refused == min(trials - 2, CHECKS)
    assert run.machine.status == "running"
    while run.machine.slots[7].busy:
        unit = run.unit(7)
        if unit.trial < trials - 2:
            out = run.failed(7, "user")
        else:
            run.done(7)
            out = run.durable(7, unit.trial, unit.step + 1, unit.lease)
    assert Finish("partial") in out
    assert [trial.status for trial in run.machine.trials.values()] == ["failed"] * (trials - 2) + ["completed"] * 2


def test_preflight_checks_the_recipe_that_is_new():
    """Bug: it checked the first trial that had not ended, which goes on with the recipe that it has."""
    run = Run(trials=3, partitions=1, epochs=2, retries=0)
    run.done(0)
    run.durable(0, 0, 1, 1)
    for fault in ("system", "user", "user"):
        run.failed(0, fault)
    run.give(Finished(at=0.0, status="failed"))
    run.give(Resumed(at=1.0))
    run.give(Retried(at=1.0, trial=0))
    for trial, recipe in ((1, "abc"), (2, "xyz")):
        run.give(Retried(at=1.0, trial=trial, recipe=recipe))
    assert run.join(1) == [Check(at=0.0, slot=1, trial=2)]


def test_an_unfit_recipe_is_reported_when_no_trial_is_left():
    run = ended("user")
    run.give(Resumed(at=1.0))
    run.give(Retried(at=1.0, trial=0, recipe="abc"))
    run.join(5)
    out = run.give(Checked(at=1.0, slot=5, trial=0, faults=("NameError",), names=()))
    assert of(Finish, out) == [Finish("failed")]
    assert run.machine.trials[0].error == "NameError"


def test_of_a_trial_that_did_not_fail_nothing_changes():
    run = Run()
    before = snapshot(run.machine)
    run.give(Retried(at=0.0, trial=0))
    assert snapshot(run.machine) == before


def test_waits_are_in_the_journal():
    run = Run(trials=2)
    run.failed(0)
    again = fold(run.lines)
    assert again.trials[0].until == 1.0 and again.earliest() == 1.0


def test_failed_of_an_older_journal_is_read():
    from hopyard.core.runs.codec import decode

    line = decode(b'{"type":"Failed","slot":1,"lease":2,"fault":"system","error":"x","at":1.0}')
    assert line == Failed(at=1.0, slot=1, lease=2, fault="system", error="x")


@pytest.mark.parametrize("rule", [ASHA(2, sync=True, min_epochs=2), Hyperband(2, sync=True, min_epochs=2)])
def test_a_trial_begins_anew_also_if_its_driver_ended_while_it_was_stored(rule):
    """Bug: the trial was at work again by then, so the retry with another recipe was ignored."""
    searches = []
    for stored in (True, False):
        run = Run(partitions=2, epochs=8, metric="loss", mode="min", stop=rule, trials=1)
        leases = []
        for _ in range(2):
            leases.append(run.unit(0).lease)
            run.done(0)
        run.durable(0, 0, 1, leases[0])
        if stored:
            run.durable(0, 0, 2, leases[1])
        run.failed(0, "user")
        run.give(Resumed(at=0.0))
        run.give(Retried(at=0.0, trial=0, recipe="another"))
        assert run.machine.trials[0].recipe == "another" and run.machine.trials[0].step == 0
        searches.append([(cohort.proposed, cohort.out) for cohort in run.machine.search._judge._cohorts.values()])
    assert searches[0] == searches[1]
