import json
import re

import msgspec
import pytest

from hopyard.core.runs.events import Finished
from hopyard.core.runs.machine import fold
from hopyard.spec import RunSpec, Warned
from hopyard.views.report import facts, report, summary
from machines import Run


def test_the_report_answers_common_questions(rough):
    text = report(rough, fold(rough), {"directory": "runs/x", "store": "s3://bucket/x"}, "partial")
    machine = fold(rough)
    best = min(
        (t for t in machine.trials.values() if t.status == "completed"), key=lambda t: (t.value("val_loss"), t.id)
    )
    failed = next(t for t in machine.trials.values() if t.status == "failed")
    for part in (
        "runs/x: partial",
        "5 of 6 trials completed, 1 failed",
        f"Best by val_loss (min): trial {best.id}, epoch {best.best + 1} of 3",
        f"lr = {best.config['lr']}",
        "idle share ",
        "few trials ",
        "lost workers  1\n",
        " lost: killed by signal 9",
        "without a driver",
        f"trial {failed.id} (user): ValueError: loss is NaN",
        "| ValueError: loss is NaN",
        "Defects: none seen",
        "States: s3://bucket/x",
        "hy.load('runs/x')",
        best.digests[12][:16],
    ):
        assert part in text, part
    assert re.search(r"done again +\d+ partitions", text)
    assert "resume" not in text.split("States:")[1]
    assert "optimizer" not in text.split("Trials, each")[1].split("Account")[0]


def test_a_run_that_is_not_over_says_how_to_go_on(rough):
    lines = rough[:70]
    assert "hopyard resume runs/x" in report(lines, fold(lines), {"directory": "runs/x"}, "interrupted")


def test_commands_can_be_pasted(rough):
    """Bug: a name with a space or a semicolon was another command."""
    for lines, status, options in ((rough[:70], "interrupted", ""), (rough, "partial", " --failed")):
        machine = fold(lines)
        if options:
            next(t for t in machine.trials.values() if t.status == "failed").fault = "system"
        text = report(lines, machine, {"directory": "my runs/x; y"}, status)
        assert f"hopyard resume 'my runs/x; y'{options}\n" in text


def test_a_run_that_was_left_says_so_and_so_do_its_trials(spec, play):
    lines = play(spec, [{"lr": lr} for lr in range(6)], interrupt=12)
    lines = lines[: 1 + next(at for at, line in enumerate(lines) if type(line).__name__ == "Interrupted")]
    machine = fold(lines)
    assert "running" in {trial.status for trial in machine.trials.values()}
    for status, head in (("interrupted", "interrupted (Ctrl-C)"), ("stopped", "stopped")):
        text = report(lines, machine, {"directory": "runs/x"}, status)
        assert text.startswith(f"Hopyard run runs/x: {head}\n")
        assert "running" not in text and "To go on: hopyard resume runs/x" in text
        assert facts(lines, machine, status)["status"] == status
        assert "running" not in {row["status"] for row in summary(machine, status)}
    text = report(lines, machine, {"directory": "runs/x"}, "running")
    assert "To go on" not in text and text.startswith("Hopyard run runs/x: running\n")


@pytest.mark.parametrize(("fault", "named"), [("system", True), ("user", False)])
def test_retriable_failures_name_the_command(fault, named):
    run = Run(trials=2, partitions=1, retries=0)
    run.done(0)
    run.durable(0, 0, 1, 1)
    while run.machine.leases.standing():
        run.failed(0, fault)
    run.give(Finished(at=0.0, status="partial"))
    for status in ("partial", "failed"):
        text = report(run.lines, run.machine, {"directory": "runs/x"}, status)
        assert ("hopyard resume runs/x --failed" in text) == named
        assert "To go on" not in text
    assert "--failed" not in report(run.lines, run.machine, {"directory": "runs/x"}, "interrupted")


def test_before_anything_happened(spec, good):
    text = report(good[:1], fold(good[:1]), {}, "running")
    assert ": running\n" in text
    assert "0 of 0 trials completed" in text


def test_a_fit_needs_no_table_of_parameters(play):
    lines = play(RunSpec(epochs=2, partitions=2, validation=0, trials=1), [{"lr": 0.1}])
    text = report(lines, fold(lines), {}, "completed")
    assert "Best: trial 0, epoch 2 of 2" in text
    assert "lr = 0.1" in text


def test_summary_is_plain(rough):
    rows = summary(fold(rough), "partial")
    assert [row["trial"] for row in rows] == list(range(6))
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert failed["error"] == "ValueError: loss is NaN" and failed["fault"] == "user"
    done = next(row for row in rows if row["status"] == "completed")
    assert done["best"] == done["history"][done["epoch"]]["val_loss"] == done["metrics"]["val_loss"]
    assert list(done["history"]) == list(range(1, done["epochs"] + 1))
    assert done["last_metrics"] == done["history"][done["epochs"]]
    assert len(done["digest"]) == 64
    assert json.loads(msgspec.json.encode(rows))[done["trial"]]["history"]["1"]["loss"] > 0
    assert facts(rough, fold(rough), "partial")["idle_share"] > 0


def test_a_traceback_of_several_trials_is_shown_once_and_whole():
    run = Run(trials=6, partitions=1)
    for number in range(6):
        lines = ["Traceback (most recent call last):", *["  a line"] * 30, f"ValueError: {0 if number < 3 else number}"]
        trace = "\n".join(lines)
        run.failed(0, "user", trace=trace)
    text = report(run.lines, run.machine, {}, "failed")
    assert "Failed: 6 trials\n  trials 0, 1, 2, 3, 4, 5 (user): broke\n    lr=" in text.replace("    \n", "    lr=\n")
    assert "  Traceback of trial 0, 1, 2\n" in text and text.count("ValueError: 0") == 1
    assert text.count("    |   a line") == 3 * 30
    assert "  and 1 other traceback: `hopyard show --json` has all" in text


def test_trials_without_a_finite_value_are_counted():
    run = Run(trials=2, partitions=1, metric="loss")
    run.done(0)
    assert "without a finite" not in report(run.lines, run.machine, {}, "running")
    run.folds = False  # NaN is not equal to itself
    run.done(0, sums={"loss": (float("nan"), 1.0)})
    assert "\n  1 trial without a finite loss\n" in report(run.lines, run.machine, {}, "completed")


def test_warnings_are_in_the_report():
    run = Run(trials=3, partitions=1)
    one, two = Warned("UserWarning: odd\nshapes", "train.py, line 3"), Warned("RuntimeWarning: nan", "train.py, line 9")
    run.done(0, warnings=(one,))
    run.done(0, warnings=(one, two))
    text = report(run.lines, run.machine, {}, "running")
    assert "Warnings\n  UserWarning: odd shapes (train.py, line 3; in 2 of 3 trials)\n  RuntimeWarning: nan (" in text
    assert "Warnings" not in report(run.lines[:5], fold(run.lines[:5]), {}, "running")
