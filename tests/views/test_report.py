import json
import re

import msgspec

from hopyard.core.machine import fold
from hopyard.spec import RunSpec
from hopyard.views.report import facts, report, summary


def test_it_says_what_people_ask(rough):
    text = report(rough, fold(rough), {"directory": "runs/x", "store": "s3://bucket/x"})
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
    assert "hopyard resume runs/x" in report(lines, fold(lines), {"directory": "runs/x"})


def test_before_anything_happened(spec, good):
    text = report(good[:1], fold(good[:1]), {})
    assert "checking" in text
    assert "0 of 0 trials completed" in text


def test_a_fit_needs_no_table_of_parameters(play):
    lines = play(RunSpec(epochs=2, partitions=2, validation=0, trials=1), [{"lr": 0.1}])
    text = report(lines, fold(lines), {})
    assert "Best: trial 0, epoch 2 of 2" in text
    assert "lr = 0.1" in text


def test_summary_is_plain(rough):
    rows = summary(fold(rough))
    assert [row["trial"] for row in rows] == list(range(6))
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert failed["error"] == "ValueError: loss is NaN" and failed["fault"] == "user"
    done = next(row for row in rows if row["status"] == "completed")
    assert done["best"] == done["history"][done["best_epoch"]]["val_loss"]
    assert len(done["digest"]) == 64
    assert json.loads(msgspec.json.encode(rows))[done["trial"]]["history"]["0"]["loss"] > 0
    assert facts(rough, fold(rough))["idle_share"] > 0
