"""What users call: `select`, `fit`, `resume`. They check their arguments before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from hopyard.data.dataset import Dataset
from hopyard.driver.directory import freed_on_error, seize_url
from hopyard.driver.pickling import RunInputs
from hopyard.driver.resuming import resumes
from hopyard.driver.runs.changes import Changes
from hopyard.driver.runs.keywords import KEYWORDS, RESUME, checked, rule_of
from hopyard.driver.runs.request import RunRequest, run_spec
from hopyard.driver.runs.run import Run
from hopyard.driver.runs.start import begin, go_on
from hopyard.engines.default import chosen
from hopyard.engines.followers import requested_trackers
from hopyard.engines.local import Local
from hopyard.errors import SpecError
from hopyard.parallel import Parallel
from hopyard.ports.engines import Engine
from hopyard.search.kinds import Search, enqueued
from hopyard.search.listed import Configs
from hopyard.space import Space
from hopyard.spec import Config, Encrypt, Mode, Timeouts
from hopyard.stopping import ASHA, Asked, Hyperband, Median, Patience
from hopyard.store.journal import room
from hopyard.store.layout import find
from hopyard.store.lock import Lock
from hopyard.store.urls import working
from hopyard.text import shown


def select(
    recipe: Callable[..., Any],
    space: Space | Callable[..., Config | None] | None,
    data: Dataset,
    *,
    search: Search,
    epochs: int,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode],
    stop: ASHA | Hyperband | Median | Patience | Callable[..., bool] | None = None,
    enqueue: Sequence[Config] | None = None,
    max_trials: int | None = None,
    max_time: float | None = None,
    goal: float | None = None,
    engine: Engine | None = None,
    parallel: Parallel | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    trust: bool = False,
    exact: bool | Literal["warn"] = "warn",
    wait: bool = True,
    encrypt: Encrypt = "between hosts",
    timeouts: Timeouts | None = None,
    track: str | Sequence[str] | None = None,
) -> Run:
    """Train many configurations of a recipe on a data set; find the best.

    Args:
        recipe: `recipe(config)` or `recipe(config, ctx)`; returns a compiled keras.Model, a hy.torch.Model
            or any hy.Trainable. Runs in workers.
        space: what to search: a hy.Space; or a function of a trial, `lambda trial: {"lr": trial.suggest_float("lr",
            1e-4, 1e-1, log=True)}`, that suggests values as Optuna's do, for all but hy.Grid; it is called again and
            again, and must depend on these values alone. None where the search has its own list (hy.Configs).
        data: what to train on.
        search: hy.Grid(), hy.Random(n), hy.Configs([...]); or one that learns: hy.TPE(n), hy.GP(n), hy.CMA(n),
            hy.Optuna(sampler, n).
        epochs: passes of each trial over the training partitions, unless `stop` ends it before.
        metric: what decides, any name that the recipe reports: "val_loss", "val_accuracy", "loss", …
            Several names, as ["val_loss", "seconds"], are objectives: `run.pareto` has the trials that none beats in
            all of them. A trial's values are those of its best epoch by the first, by which `stop`, `goal` and
            `run.best` judge too. "seconds" is the time that workers spent on the trial.
        mode: "min" or "max"; a list of as many for several metrics.
        stop: what stops, pauses and promotes trials: hy.ASHA(), hy.Hyperband(), hy.Median(), hy.Patience(n), or a
            function `(trial, history)` that is asked at the end of each epoch whether the trial ends; it gets a
            hy.Trial and epoch → metrics; where it raises, the trial goes on, with a warning. With exact=True what
            depends on time (`trial.seconds`, the models) raises there, so it decides nothing. None: all trials go to
            the end.
        enqueue: configurations to try first, before those of `search`; a value that the space does not have (outside a
            range, between its steps) is warned of.
        max_trials: at most so many trials, those of `enqueue` included.
        max_time: seconds after which the run ends with what it has, as completed; time without a driver does not count.
        goal: the value of `metric` at which the run ends, as completed.
        engine: hy.Local() (the default), hy.Hosts([…]), hy.Spark(spark, workers=…), hy.Kubernetes(workers, image) or
            hy.Inline().
        parallel: hy.Hopper() (the default); hy.AllReduce() or hy.LocalSGD(every=…): several workers train one model.
        seed: of everything random. Equal seeds give equal bits, whatever the number of workers.
        directory: the run directory, a path or a URL of S3, HDFS and the like; default `runs/<time>-<word>`. An
            existing one is refused unless `resume`. A run at a URL can go on from any host.
        store: where States are kept: a path, or any fsspec URL (memory:// with hy.Inline() only). In the URL of a file
            escapes such as %20 stand for characters. Each run has a folder there. Default: inside the directory.
        resume: go on with what is in `directory`, if there is a run.
        trust: with `resume`: open the pickle of that run even where others than this user and root may write it, which
            nobody can tell of a URL.
        exact: True: fail on what cannot be exact; "warn": say it once; False: be silent.
        wait: False: return at once; `run.wait()` waits. (Not with hy.Inline(), which trains in this process.)
        encrypt: whether States are encrypted on the network (TLS 1.3); messages always are. "between hosts":
            unless they stay on one host. True: always. False: never; the network can then read them, and change them
            on their way. (On one host nearly all go by shared memory, and nothing changes.)
        timeouts: after which a worker is replaced, as hy.Timeouts(stall_timeout=60); None: hy.Timeouts().
        track: show the run there too, from a process beside it: "tensorboard" (in the run directory) or
            "tensorboard=DIR"; "mlflow" (the server of MLFLOW_TRACKING_URI) or "mlflow=URI"; a list of these.

    Returns:
        Run: `.best`, `.pareto`, `.trials`, `.to_pandas()`, `.history()`, `.plot(path)`, `.gantt(path)`.

    Raises:
        SpecError, DataError, PreflightError, RunDirectoryError: before anything is trained.
        Inexact: exact=True, and something of the run cannot be exact.
        RunFailed: all trials failed, or none has a finite value of `metric`.
        ResourceError: disk or memory ran out; `hy.resume(directory)` goes on.

    Example:
        >>> import numpy as np, torch, hopyard as hy
        >>> def recipe(config):
        ...     net = torch.nn.Linear(3, 2)
        ...     optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
        ...     return hy.torch.Model(net, optimizer, torch.nn.functional.cross_entropy)
        >>> x = np.random.default_rng(0).normal(size=(1000, 3))
        >>> data = hy.Dataset.numpy(x, x[:, 0] > 0, validation=0.2, partitions=4)
        >>> space = hy.Space(lr=hy.loguniform(1e-3, 1e-1))
        >>> run = hy.select(recipe, space, data, search=hy.Random(4), epochs=2, metric="val_loss", mode="min")
        >>> run.best.epoch, sorted(run.best.metrics)
        (2, ['loss', 'val_loss'])
        >>> run.best.predict(x).shape
        (1000, 2)
    """
    return _begin(locals())


def fit(
    recipe: Callable[..., Any],
    config: Config,
    data: Dataset,
    *,
    epochs: int,
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
    stop: Patience | Callable[..., bool] | None = None,
    engine: Engine | None = None,
    parallel: Parallel | None = None,
    seed: int = 0,
    directory: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    trust: bool = False,
    exact: bool | Literal["warn"] = "warn",
    wait: bool = True,
    encrypt: Encrypt = "between hosts",
    timeouts: Timeouts | None = None,
    track: str | Sequence[str] | None = None,
) -> Run:
    """Train one configuration: a Run of one trial. As `select`; without metric and mode the best epoch is the last.
    `stop`: hy.Patience(n) or a function; the other rules compare trials."""
    given = locals()
    if metric is not None and not isinstance(metric, str):
        raise SpecError(f"metric = {shown(metric)}: fit has one trial and takes one name; hy.select takes a list")
    if metric is not None and mode is None:
        raise SpecError(f'mode = None: metric = {shown(metric)} needs "min" or "max", which of its values is the best')
    if (rule := rule_of(stop)) is not None and rule.compares:
        raise SpecError(
            f"stop = hy.{type(rule).__name__}(…) compares trials, and fit has one: give hy.Patience(n), a function, or "
            "use hy.select"
        )
    return _begin(given)


def resume(
    directory: str | Path,
    *,
    engine: Engine | None = None,
    wait: bool = True,
    failed: bool = False,
    recipe: Callable[..., Any] | None = None,
    epochs: int | None = None,
    search: Search | None = None,
    workers: int | None = None,
    trust: bool = False,
    timeouts: Timeouts | None = None,
    track: str | Sequence[str] | None = None,
    take_over: bool = False,
) -> Run:
    """Go on with a run whose driver ended, from its last durable States, with the recipe that it was started with. If
    the run has ended, States that are gone from its store, or were cut, are made again.

    Args:
        directory: of the run, a path or a URL, or its name under `runs/`.
        engine: another than it was started with. Give one where its engine had env=, whose values are in no file, and
            this process has other values of these variables, or none.
        wait: as for `select`.
        failed: try failed trials again, also of a run that has ended: those that a fault of the system, the store, the
            data or memory ended, and poison, from their last durable States, with nothing counted against them.
        recipe: with failed=True: another recipe, with which those failed trials begin anew that errors of their recipe
            ended, or too much memory, or workers that crashed (poison), and those that had no State yet. The other
            failed trials go on with theirs. To try first what can go on, leave it out the first time. The models of a
            trial that begins anew stay until a State of the new attempt is stored.
        epochs: epochs of each trial from now on, more than the run has so far. Trials that completed go on from their
            last State, to the same bits as in a run that had as many from the start. A learning-rate schedule of a
            fixed length (OneCycleLR) raises at its end, and so fails the trial, whose models remain; a recipe that
            took the length from ctx.epochs is refused, and so is a run with stop=.
        search: proposes the trials of the run and more, for example hy.Random(64) where the run had hy.Random(32). The
            configurations that the run has by enqueue= stay in front. New trials are trained with the recipe that the
            run was started with, not with the one of `recipe`.
        workers: workers of a gang from now on, of a run by AllReduce, LocalSGD or Hopper(gang=…). What was trained
            stays; from its last State each trial goes on as a run of so many workers would from there. (How many
            processes there are is the engine's: engine=hy.Local(workers=2).)
        trust: open the pickle of the run even where others than this user and root may write it: that runs its code.
        timeouts: from now on, all four of them; None: as they were. (`run.timeouts` has them.)
        track: from now on, as for `select`; None: as it was, [] for nothing.
        take_over: do not look for 30 s whether the driver of a run at a URL lives. One that does ends, and loses what
            it has not copied there.

    Raises:
        SpecError: recipe= without failed=True, or it is no recipe; failed=True where the goal
            of the run was reached, or its max_time is over; epochs= and search= add nothing, or the search does not
            begin with the run's trials; workers= of a run without gangs, of one that has ended, of one whose States
            belong to each member, or more than the engine has.
        RunDirectoryError: no run there, in use by a live driver, or started by another Python version; others may write
            its pickle.
        JournalError: the journal is damaged, or of a newer version.
    """
    given = checked(RESUME, locals())
    if recipe is not None and not failed:
        raise SpecError(
            f"recipe = {shown(recipe)}: only trials that failed begin anew with another recipe; give failed=True too"
        )
    changes = Changes(given["timeouts"], given["failed"], recipe, epochs, search, workers, track=given["track"])
    layout = find(directory)
    with room(layout.root):
        lock = Lock(layout.lock)
    with freed_on_error(lock):
        if layout.url and given["take_over"]:
            seize_url(layout, lock, layout.journal)
        elif layout.url:
            working.fetch(layout.root, driving=True)
        return go_on(layout, lock, engine, given["wait"], changes, trust=given["trust"], follow=requested_trackers())


def _begin(arguments: dict[str, Any]) -> Run:
    """Check the arguments of `select` or `fit`, by name, and begin the run."""
    given = checked(KEYWORDS, arguments)
    space, stop = given.get("space"), given["stop"]
    search = enqueued(given["search"], space, given["enqueue"]) if "search" in given else Configs([given["config"]])
    function = stop if isinstance(rule_of(stop), Asked) else None
    inputs = RunInputs(given["recipe"], given["data"], space, search, given["engine"] or chosen() or Local(), function)
    own = {name: given[name] for name in ("store", "encrypt", "directory", "parallel", "track")}
    request = RunRequest(inputs, run_spec(inputs, given), follow=requested_trackers(), **own)
    return begin(request, resumes(given["resume"]), given["wait"], given["trust"])
