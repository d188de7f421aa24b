import io
import math
import re
import types
from itertools import count

import pytest
from msgspec import structs
from rich.console import Console

from hopyard.core.liveness import Stall
from hopyard.core.runs.events import (
    DECISIONS,
    Began,
    Check,
    Checked,
    Deferred,
    Done,
    Failed,
    Finished,
    Joined,
    Proposed,
    Resumed,
    Retried,
    StoreAway,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.sim.world import World, lengths
from hopyard.spec import Part, RunSpec, Warned
from hopyard.views.live import LiveTable, open_display
from machines import Run


def paper(width=120, height=30, terminal=True):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=height, color_system=None)


def told(console):
    return console.file.getvalue().splitlines()


def epochs(lines):
    return sum(len(trial.history) for trial in fold(lines).trials.values())


def drive(table, lines, machine=None):
    machine = machine or Machine(lines[0].spec)
    for line in lines:
        machine.apply(line)
        machine.settle()
        table.see([line], machine)
    return machine


def picture(lines, width=120, height=30, after=0.5):
    """What stands on a terminal after these lines."""
    machine = fold(lines)
    console = paper(width, height)
    table = LiveTable(machine.spec, console)
    table._output = "plain"  # fold without drawing
    table._print = lambda text: None
    table.see(lines, machine)
    console.print(table.render(machine, lines[-1].at + after, height, width))
    return console.file.getvalue().splitlines()


def test_waiting_trials_and_reasons_are_in_the_table():
    spec = RunSpec(epochs=1, partitions=2, validation=0, trials=3)
    lines = [Began(at=0.0, spec=spec), *[Proposed(at=0.0, trial=n, config={"lr": n}) for n in range(3)]]
    lines += [Joined(at=0.0, slot=0, host="a", pid=1), Check(at=0.0, slot=0, trial=0)]
    lines += [Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",))]
    for number in (1, 2):
        lines.append(Deferred(at=1.0, trial=number, until=5.0 + number, fault="system", reason="Connection reset"))
    lines.append(StoreAway(at=2.0, slot=0, error="State 0-1-1 cannot be stored in s3://x: nobody answered"))
    shown = picture(lines, after=1.0)
    assert "store away since 1.0 s" in shown[0]
    assert sum("delayed" in line for line in shown) == 2
    text = "trial 1 and 1 other: tried again in 3.0 s after a fault of the system: Connection reset"
    assert text in [line.rstrip() for line in shown]
    assert any(line.startswith("worker 0 tries again: State 0-1-1 cannot be stored in s3://x") for line in shown)
    assert len(picture(lines, height=8)) <= 8


def test_what_stays_and_what_hops_is_said_once():
    spec = RunSpec(epochs=1, partitions=2, validation=0, trials=1)
    checked = Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",), hop_bytes=1_800_000, frozen_bytes=90_900_000)
    lines = [Began(at=0.0, spec=spec), Proposed(at=0.0, trial=0, config={}), Joined(at=0.0, slot=0, host="a", pid=1)]
    console = paper(terminal=False)
    drive(LiveTable(spec, console), [*lines, Check(at=0.0, slot=0, trial=0), checked])
    assert told(console)[-1] == "States: 1.8 MB of trial 0 hop, 90.9 MB are frozen and stay"


def test_plain_lines_one_an_epoch(rough):
    console = paper(terminal=False)
    table = LiveTable(rough[0].spec, console)
    table.close(drive(table, rough))
    lines = told(console)
    assert lines[0] == "training: 6 trials × 3 epochs, on 3 workers"
    first = next(line for line in lines if line.startswith("trial 0  epoch 1/3  "))
    assert re.fullmatch(
        r"trial 0  epoch 1/3  val_loss \S+  loss \S+  val_accuracy \S+  accuracy \S+  lr=0.1 width=64", first
    )
    assert sum("  epoch " in line for line in lines) == epochs(rough)
    failed = re.compile(r"trial \d  failed \(user\): ValueError: loss is NaN  lr=\S+ width=\S+ optimizer=adam")
    assert sum(failed.fullmatch(line) is not None for line in lines) == 1
    assert sum(line.endswith(" lost: killed by signal 9") for line in lines) == 1
    assert re.fullmatch(
        r"partial: 5 of 6 trials in \d+ s, \d+\.\d% idle; best: trial \d, epoch 3, val_loss \S+  lr=\S+ width=\d+",
        lines[-1],
    )


@pytest.mark.parametrize(
    ("batches", "printed"),
    [
        ([[0, 1, 2]], [[1, 2, 3]]),
        ([[1], [0], [2]], [[], [1, 2], [3]]),
        ([[2], [1, 0]], [[], [1, 2, 3]]),
        ([[2, 0], [1]], [[1], [2, 3]]),
        ([[1], [2]], [[], [], [2, 3]]),  # at the end of a run that died
    ],
)
def test_each_epoch_is_reported_once_and_in_order(batches, printed):
    """Validations end in any order, and one unit or one receive may bring several epochs."""
    spec = RunSpec(epochs=3, partitions=1, validation=1, trials=1, metric="val_loss")
    machine, console = fold([Began(at=0.0, spec=spec), Proposed(at=0.0, trial=0, config={})]), paper(terminal=False)
    table = LiveTable(spec, console)
    table.see([Began(at=0.0, spec=spec)], machine)
    found = []
    for epochs in [*batches, None]:
        before = len(told(console))
        if epochs is None:
            table.close(machine)
        else:
            for epoch in epochs:
                machine.trials[0].add_epoch(epoch, {"val_loss": 1.0}, spec)
            table.see([Checked(at=1.0, slot=0, trial=0, faults=(), names=())], machine)
        lines = [re.match(r"trial 0  epoch (\d)/3  ", line) for line in told(console)[before:]]
        found.append([int(line[1]) for line in lines if line])
    assert found == [*printed, *[[]] * (len(found) - len(printed))]


@pytest.mark.parametrize("fit", [True, False])
def test_trials_that_fail_preflight_are_reported_once_another_passed(fit):
    """If none does, the error that ends the run tells them."""
    run, console = Run(trials=5, checked=False), paper(terminal=False)
    table = LiveTable(run.machine.spec, console)
    table.see(run.lines, run.machine)
    for trial in range(3):
        faults = () if fit and trial == 2 else ("no label",)
        names = () if faults else ("loss",)
        run.give(Checked(at=0.0, slot=0, trial=trial, faults=faults, names=names))
        table.see(run.lines[-2:], run.machine)
        lines = [line for line in told(console) if "failed" in line]
        assert lines == ([f"trial {n}  failed (user): no label  " for n in (0, 1)] if not faults else [])


@pytest.mark.parametrize("terminal", [True, False])
def test_warnings_are_listed_at_the_end(terminal):
    run, console = Run(trials=1), paper(terminal=terminal, width=200)
    table = LiveTable(run.machine.spec, console)
    table.see(run.lines, run.machine)
    run.done(0, warnings=tuple([Warned("W: odd", f"train.py, line {place}") for place in range(7)]))
    table.see(run.lines[-1:], run.machine)
    assert not any("odd" in line for line in told(console))
    table.close(run.machine)
    assert told(console)[-6:] == [
        *(f"warning: W: odd (train.py, line {place}; in trial 0)" for place in range(5)),
        "warning: and 2 others",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_each_traceback_is_shown_once_and_at_once(terminal):
    run, console = Run(trials=6, partitions=1), paper(terminal=terminal, width=200)
    table = LiveTable(run.machine.spec, console, clock=count(0, 10).__next__)
    table.see(run.lines, run.machine)
    for number in range(6):
        slot = next(iter(run.machine.leases.standing().values()))[0]
        lease = run.unit(slot).lease
        trace = f"Traceback:\n  line of trial {number % 5}"
        event = Failed(at=1.0, slot=slot, lease=lease, fault="user", error="no", trace=trace)
        before = len(run.lines)
        run.give(event)
        table.see(run.lines[before:], run.machine)
        shown = [line.strip() for line in told(console) if "line of trial" in line]
        assert shown == [f"line of trial {n}" for n in range(min(number + 1, 3))]
    assert any("What trial 0 raised:" in line for line in told(console))


def test_epochs_of_a_failing_trial_are_shown_before_its_failure():
    spec = RunSpec(epochs=3, partitions=1, validation=1, trials=1, metric="val_loss")
    machine, console = fold([Began(at=0.0, spec=spec), Proposed(at=0.0, trial=0, config={})]), paper(terminal=False)
    table = LiveTable(spec, console)
    machine.trials[0].add_epoch(1, {"val_loss": 1.0}, spec)
    machine.trials[0].status, machine.trials[0].ended = "failed", True
    table.see([Began(at=0.0, spec=spec), Checked(at=1.0, slot=0, trial=0, faults=(), names=())], machine)
    assert [line.split("  ")[1][:7] for line in told(console)] == ["epoch 2", "failed "]


def test_a_run_that_goes_on_tells_only_what_is_new(rough):
    at = next(n for n, line in enumerate(rough) if type(line).__name__ == "Resumed")
    console = paper(terminal=False)
    table = LiveTable(rough[0].spec, console)
    drive(table, rough[at + 1 :], fold(rough[: at + 1]))
    before = epochs(rough[:at])
    assert sum("  epoch " in line for line in told(console)) == epochs(rough) - before
    assert before > 0


def test_a_retried_trial_is_reported_again():
    run = Run(trials=2, partitions=1, epochs=2, retries=0)
    machine = run.machine
    run.done(0)
    run.durable(0, 0, 1, 1)
    while machine.leases.standing():
        run.failed(0, "user" if run.unit(0).trial == 0 else "system")
    run.give(Finished(at=0.0, status="failed"))
    console = paper(terminal=False)
    table = LiveTable(machine.spec, console)

    def tell(event):
        decided = [command for command in run.give(event) if isinstance(command, DECISIONS)]
        table.see([event, *decided], machine)

    tell(Resumed(at=1.0))
    tell(Retried(at=1.0, trial=1))
    tell(Retried(at=1.0, trial=0, recipe="another"))
    run.at = 2.0
    tell(Joined(at=2.0, slot=4, host="h", pid=4))
    tell(Checked(at=2.0, slot=4, trial=0, faults=(), names=("loss",)))
    while machine.leases.standing():
        unit = run.unit(4)
        if unit.trial == 1:
            tell(Failed(at=3.0, slot=4, lease=unit.lease, fault="system", error="once more"))
        else:
            parts = tuple(Part(partition, {"loss": (1.0, 1.0)}, 1.0) for partition in unit.partitions)
            tell(Done(at=3.0, slot=4, lease=unit.lease, parts=parts, seconds=1.0, memory_key="m"))
    lines = [line for line in told(console) if line.startswith("trial")]
    assert sum("failed (system)" in line and "once more" in line for line in lines) == 1
    assert [line.split("  ")[1] for line in lines if line.startswith("trial 0")] == ["epoch 1/2", "epoch 2/2"]


def test_on_a_terminal(rough):
    lines = picture(rough[:70])
    assert re.match(r"running █+\S*░* \d+%  6 trials × 3 epochs  3 slots  idle \d", lines[0])
    assert re.search(r"about \d+ s left  1 worker lost$", lines[0])
    head = ["trial", "config", "status", "epoch", "val_loss", "loss", "val_accuracy", "left", "worker"]
    assert lines[1].split() == head
    assert len(lines) == 12
    assert sum(line.startswith("★") for line in lines) == 1
    running = re.compile(r" running  [123]/3 [█▏▎▍▌▋▊▉░]{5} .* \d+ node[01]\s*$")
    assert sum(running.search(line) is not None for line in lines) >= 2
    assert re.fullmatch(r"trial \d failed \(user\): ValueError: loss is NaN", lines[-4])
    assert lines[-3].split() == ["host", "workers", "partitions", "States", "stored", "hopped"]
    assert re.fullmatch(r"node0 +2 +6 +\d+ +[\d.]+ MB +[\d.]+ MB", lines[-2])


@pytest.mark.parametrize("width", [40, 79, 200])
def test_the_table_fits_the_terminal(rough, width):
    for end in range(1, len(rough), 7):
        lines = picture(rough[:end], width, 12)
        assert len(lines) <= 12
        assert max(map(len, lines)) <= width


def test_hundreds_of_trials_show_the_running_the_best_and_a_summary():
    world = World(
        RunSpec(epochs=2, partitions=4, validation=1, trials=300, metric="val_loss"),
        6,
        lengths(300, 0.5, 0.1, 0),
        keep=True,
    )
    world.run()
    lines = picture(world.journal[: len(world.journal) // 2], height=24)
    assert len(lines) <= 24
    assert sum(" running " in line or " validating " in line for line in lines[2:]) >= 5
    assert any(line.startswith("★") for line in lines)
    assert "more:" in lines[-1] and "completed" in lines[-1] and "waiting" in lines[-1]


def test_a_fit_shows_its_epochs(play):
    lines = play(
        RunSpec(epochs=4, partitions=4, validation=2, trials=1, metric="val_loss", group=2), [{"lr": 0.1}], slots=2
    )
    shown = picture(lines[: len(lines) * 2 // 3])
    assert shown[1] == "lr=0.1"
    assert shown[2].split() == ["epoch", "val_loss", "loss", "val_accuracy", "accuracy", "worker"]
    assert shown[3].split()[0] == "1/4"
    assert any(line.startswith("★") for line in shown)
    for n, line in enumerate(lines):
        if isinstance(line, Done):
            parts = tuple(structs.replace(part, sums={**part.sums, "loss": (math.nan, 1.0)}) for part in line.parts)
            lines[n] = structs.replace(line, parts=parts)
    assert not any(line.startswith("★") for line in picture(lines[: len(lines) * 2 // 3]))


@pytest.mark.parametrize(("display", "least", "most"), [(None, 15, 20), (object(), 8, 10)])
def test_the_table_draws_at_most_four_times_a_second_and_twice_in_a_notebook(good, display, least, most):
    now = [1000.0]
    table = LiveTable(good[0].spec, paper(), clock=lambda: now[0], display=display)
    drawn = []
    table._draw = lambda machine, at: drawn.append(at)
    machine = fold(good[:1])
    for _ in range(100):
        table.see([], machine)
        now[0] += 0.05
    assert least <= len(drawn) <= most


def test_see_does_not_look_at_the_run_when_it_does_not_draw(good):
    now = 1000.0
    table = LiveTable(good[0].spec, paper(), clock=lambda: now)
    machine = fold(good)
    table.see(good, machine)
    table.see([], None)


def test_live_draws_and_leaves_the_table(good):
    console = paper()
    clock = count()
    table = LiveTable(good[0].spec, console, clock=lambda: good[0].at + next(clock) / 40)
    table.close(drive(table, good))
    table.close(fold(good))
    text = console.file.getvalue()
    assert "completed: 6 of 6 trials" in text.splitlines()[-1]
    assert text.endswith("\n")


def test_in_a_notebook_one_display_is_updated(good):
    pages = []
    display = types.SimpleNamespace(update=lambda page, raw: pages.append(page))
    clock = count()
    table = LiveTable(good[0].spec, clock=lambda: good[0].at + next(clock) / 40, display=display)
    table.close(drive(table, good))
    assert len(pages) > 2
    assert all(page.keys() == {"text/plain", "text/html"} for page in pages)
    for text in pages[-1].values():
        assert "completed" in text and "val_loss" in text
    assert pages[-1]["text/html"].startswith("<pre") and "<" not in pages[-1]["text/plain"]


def test_where_no_notebook_runs_there_is_no_display():
    assert open_display() is None


def test_a_worker_that_makes_no_progress_is_a_status_on_a_terminal(good):
    lines = good[: len(good) // 2]
    machine = fold(lines)
    slot, unit = next(iter(machine.leases.standing().values()))
    console = paper()
    stalls = {slot: Stall("train", 42.0)}
    table = LiveTable(machine.spec, console, clock=lambda: lines[-1].at, stalls=lambda: stalls)
    table.see(lines, machine)
    shown = console.file.getvalue()
    assert "1 stalled for 42 s" in shown
    assert re.search(rf"(?m)^.? *{unit.trial} .* stalled ", shown)
    table.close(machine)


def test_a_worker_without_progress_is_reported_once(good):
    lines = good[: len(good) // 2]
    machine = fold(lines)
    console, stalls = paper(terminal=False), {}
    table = LiveTable(machine.spec, console, stalls=lambda: dict(stalls))
    table.see(lines, machine)
    before = len(told(console))
    for seconds in (30.4, 31.4):
        stalls[2] = Stall("fetch", seconds)
        table.see([], machine)
    stalls.clear()
    table.see([], machine)
    text = "worker 2 stalled: no progress for 30 seconds in phase 'fetch'; it is replaced after 600 (stall_timeout)"
    assert told(console)[before:] == [text]
