"""How many decisions a second a rung takes: ours (asynchronous, promoting) beside Optuna's SuccessiveHalvingPruner.

    python benchmarks/rungs.py [trials, default 10000]

Ours: each trial is proposed, reports at the first rung, and is paused or promoted; those that are promoted report at
the next rung. The rate is that of the last tenth, when the rung is full, without the garbage collector; the best of
three. Optuna: a study in memory with as many trials that have reported at the first rung; each decision is one `report`
and one `should_prune` of a further trial.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from typing import Any

from hopyard.core.runs.records import SlotRecord, TrialRecord
from hopyard.core.runs.search import Search
from hopyard.spec import RunSpec
from hopyard.stopping import ASHA


def ours(trials: int) -> float:
    """Decisions a second at so many trials."""
    spec = RunSpec(epochs=27, partitions=1, validation=0, metric="loss", stop=ASHA(3), trials=trials)
    records: dict[int, TrialRecord] = {}
    slots: dict[int, Any] = {n: SlotRecord(n, "h", n, "", 0.0) for n in range(8)}
    search = Search(spec, records, slots)
    stream = random.Random(0)
    count, began = 0, 0.0
    queue: list[int] = []

    def report(number: int) -> int:
        trial = records[number]
        values = {"loss": stream.random()}
        for epoch in range(len(trial.history), trial.target):
            trial.history[epoch] = values
        trial.step = trial.target
        search.report(trial, values)
        decided = 0
        for decision in search.decide(0.0):
            decided += 1
            other = records[decision.trial]
            if type(decision).__name__ == "Granted":
                search.grant(other)
                other.target = decision.target
                queue.append(other.id)
            elif type(decision).__name__ == "Paused":
                search.pause(other)
        return decided

    for number in range(trials):
        if number == trials - trials // 10:
            count, began = 0, time.perf_counter()
        records[number] = TrialRecord(number, {}, search.propose(number))
        count += report(number)
        while queue:
            promoted = queue.pop()
            if records[promoted].target < spec.steps:
                count += report(promoted)
            else:
                search.end(records[promoted])
    return count / (time.perf_counter() - began)


def optunas(trials: int, decisions: int = 30) -> float:
    """Decisions a second at so many trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(pruner=pruner)
    stream = random.Random(0)
    make = optuna.trial.create_trial
    state = optuna.trial.TrialState.PRUNED
    values = [stream.random() for _ in range(trials)]
    study.add_trials(
        [make(state=state, intermediate_values={1: v}, system_attrs={"completed_rung_0": v}) for v in values]
    )
    began = time.perf_counter()
    for _ in range(decisions):
        trial = study.ask()
        trial.report(stream.random(), step=1)
        trial.should_prune()
    return decisions / (time.perf_counter() - began)


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for trials in (most // 100, most // 10, most):
        gc.collect()
        gc.disable()
        mine, other = max(ours(trials) for _ in range(3)), max(optunas(trials) for _ in range(3))
        gc.enable()
        print(f"{trials:7,} trials: {mine:11,.0f} decisions/s, Optuna {other:9,.1f}: {mine / other:9,.0f} ×")


if __name__ == "__main__":
    main()
