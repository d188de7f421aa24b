"""The side of the peers: runs in their environment (`compare.py` makes it) and prints one line of JSON.

PEERS/bin/python benchmarks/peers/peer.py ray|optuna DIGITS.npz
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from net import CONFIGS, EPOCHS, ETA, TRIALS, TRIALS_OF_RAY, Net, best_so_far

DATA = {name: array for name, array in np.load(sys.argv[2]).items()} if len(sys.argv) > 2 else {}


def noted(folder: str, loss: float) -> None:
    """Note a loss with its time."""
    with Path(folder, str(os.getpid())).open("a", encoding="utf-8") as file:
        file.write(f"{time.time()} {loss}\n")


def improved(folder: str, began: float) -> list[tuple[float, float]]:
    """Return (seconds, loss) whenever a loss was the best so far."""
    lines = [line.split() for path in Path(folder).iterdir() for line in path.read_text().splitlines()]
    return best_so_far([(float(at) - began, float(loss)) for at, loss in lines])


def ray_tune() -> dict[str, Any]:
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    result: dict[str, Any] = {"version": ray.__version__}

    class Nothing(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            pass

        def step(self) -> dict[str, Any]:
            return {"loss": 0.0, "done": True}

        def reset_config(self, config: dict[str, Any]) -> bool:
            return True

        def save_checkpoint(self, folder: str) -> None:
            pass

    def fit(trainable: Any, configs: list[dict[str, Any]], reuse: bool = False, scheduler: Any = None) -> float:
        tuner = tune.Tuner(
            trainable,
            param_space={"one": tune.grid_search(configs)},
            tune_config=tune.TuneConfig(reuse_actors=reuse, scheduler=scheduler, metric="loss", mode="min"),
            run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
        )
        began = time.time()
        tuner.fit()
        return time.time() - began

    nothing = [{"n": n} for n in range(TRIALS_OF_RAY)]
    fit(Nothing, nothing[:4])  # whatever the first call starts
    result["noop"] = len(nothing) / fit(Nothing, nothing)
    result["noop_reused"] = len(nothing) / fit(Nothing, nothing, reuse=True)
    folder, data = tempfile.mkdtemp(), ray.put(DATA)

    def train(config: dict[str, Any]) -> None:
        model, rows = Net(config["one"]), ray.get(data)
        for number in range(EPOCHS):
            loss = model.epoch(rows, number)
            noted(folder, loss)
            tune.report({"loss": loss})

    began = time.time()
    scheduler = ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=ETA)
    result["seconds"] = fit(train, CONFIGS, scheduler=scheduler)
    result["losses"] = improved(folder, began)
    return result


def study_of(path: str) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.JournalStorage(JournalFileBackend(path))
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)
    return optuna.create_study(study_name="peer", storage=storage, pruner=pruner, load_if_exists=True)


def work(path: str, folder: str, configs: list[dict[str, Any]]) -> None:
    """One process of joblib: its share of the trials."""
    import optuna

    study = study_of(path)
    for config in configs:
        trial = study.ask()
        model = Net(config) if folder else None
        state, loss = optuna.trial.TrialState.COMPLETE, 0.0
        for number in range(EPOCHS if model else 0):
            loss = model.epoch(DATA, number) if model else 0.0
            noted(folder, loss)
            trial.report(loss if np.isfinite(loss) else 1e9, number + 1)
            if trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        study.tell(trial, loss if np.isfinite(loss) else 1e9, state) if state.name == "COMPLETE" else study.tell(
            trial, state=state
        )


def optuna_and_joblib() -> dict[str, Any]:
    import joblib
    import optuna

    result: dict[str, Any] = {"version": optuna.__version__}
    with joblib.Parallel(n_jobs=2) as parallel:
        parallel([joblib.delayed(os.getpid)() for _ in range(4)])

        def run(configs: list[dict[str, Any]], folder: str) -> float:
            path = f"{tempfile.mkdtemp()}/journal.log"
            study_of(path)
            began = time.time()
            parallel([joblib.delayed(work)(path, folder, configs[n::2]) for n in range(2)])
            return time.time() - began

        many = TRIALS // 4
        result["noop"] = many / run([{"n": n} for n in range(many)], "")
        folder = tempfile.mkdtemp()
        began = time.time()
        result["seconds"] = run(CONFIGS, folder)
        result["losses"] = improved(folder, began)
    return result


if __name__ == "__main__":
    which = {"ray": ray_tune, "optuna": optuna_and_joblib}[sys.argv[1]]
    print(json.dumps(which()), flush=True)
