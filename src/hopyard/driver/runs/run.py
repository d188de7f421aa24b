"""The user's object of a run, live or read from its directory."""

from __future__ import annotations

import contextlib
import html
import math
import time
from copy import copy
from pathlib import Path
from typing import Any

import msgspec

from hopyard import checks
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.data.dataset import Dataset
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import sizes_in
from hopyard.driver.interrupts import without_frames
from hopyard.driver.logs import read_log
from hopyard.driver.pickling import RunInputs
from hopyard.driver.pickling import load as unpickle
from hopyard.driver.runs.about import About, about_of, manifest_of, same_data, states_url
from hopyard.driver.runs.changes import value_digest
from hopyard.driver.runs.fold import Fold, Moment
from hopyard.driver.runs.loop import Handle
from hopyard.driver.runs.trial import ModelSource, Trial, by_epoch, by_trial
from hopyard.driver.written import is_picture, written
from hopyard.errors import HopyardError, RunDirectoryError, RunFailed, SpecError, UsageError
from hopyard.frameworks import quiet
from hopyard.search.proposer import observation
from hopyard.space import Distribution, Space
from hopyard.spec import RunSpec, Timeouts
from hopyard.store.journal import whole_bytes
from hopyard.store.layout import Layout, find
from hopyard.store.standing import held
from hopyard.store.states import open_store
from hopyard.text import escaped
from hopyard.training.build import Plan
from hopyard.views import words
from hopyard.views.timeline import Span, chart

LOOK_SECONDS = 0.5
"""Time between two looks at a run that another process drives."""


def load(directory: str | Path, *, trust: bool = False) -> Run:
    """Read a run from its journal; changes nothing.

    Args:
        directory: of the run, a path or a URL, or its name under `runs/`.
        trust: let its models be built though others than this user and root may write the pickle of their recipe.

    Raises:
        RunDirectoryError: no run there.
        JournalError: damaged, or of a newer version.
    """
    trust = checks.flag("trust", trust)
    layout = find(directory)
    if held(layout.lock) and not whole_bytes(layout.journal):
        raise RunDirectoryError(f"{layout.root}: its driver has written nothing yet; try again in a moment")
    run = Run(layout, trust=trust)
    with run._now():
        return run


class Run:
    """A run, live or read. Its properties and methods fold the journal up to now, whoever drives the run, and may be
    called from any thread. A Trial stays as it was when it was returned.

    Attributes:
        directory: its directory; of a run at a URL the folder on this host that has its files.
        url: its URL; "": it is at none.
    """

    def __init__(
        self,
        layout: Layout,
        machine: Machine | None = None,
        inputs: RunInputs | None = None,
        driver: Handle | None = None,
        trust: bool = False,
        live: RunInputs | None = None,
    ) -> None:
        self._layout = layout
        self._fold = Fold(layout, machine)
        self._opened = inputs
        self._pickled = None if inputs is None else _pickled(about_of(layout))
        self._live = live
        self._live_digests = None if live is None else _digests(live)
        self._trust = trust
        self._driver = Handle() if driver is None else driver
        self._source: ModelSource | None = None
        self.directory, self.url = layout.root, layout.url

    def __repr__(self) -> str:
        with self._now() as (machine, status):
            ends = [record.status for record in machine.trials.values()]
        done, stopped = ends.count("completed"), ends.count("stopped")
        text = f"{done} of {len(ends)} trials completed" + (f", {stopped} stopped" if stopped else "")
        return escaped(f"<Run {self._layout.shown} {status}: {text}>")

    def _now(self) -> contextlib.AbstractContextManager[Moment]:
        """Hold the run's state as it is now, for reading."""
        return self._fold.now()

    def _repr_html_(self) -> str | None:
        """What a notebook shows: a table of the trials; None without pandas. Reads the journal once."""
        with self._now():
            try:
                table = self.to_pandas().drop(columns="digest", errors="ignore")
            except UsageError:
                return None
            return f"<p>{html.escape(repr(self))}</p>{table._repr_html_()}"

    @property
    def status(self) -> str:
        """One of "running", "completed", "partial" (some trials failed), "failed" (all did, or none has a finite value
        of the run's metric), "stopped" (by `stop`), and "interrupted": its driver ended before it did."""
        with self._now() as moment:
            return moment.status

    @property
    def done(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._driver.over.is_set() and not held(self._layout.lock)

    @property
    def timeouts(self) -> Timeouts:
        """After which its workers are replaced."""
        with self._now() as (machine, _):
            return machine.spec.timeouts

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        with self._now() as (machine, status):
            return [self._trial(record, machine.spec, status) for record in machine.trials.values()]

    @property
    def best(self) -> Trial:
        """The trial with the best (trial, epoch) by the run's metric; ties: the one that is better in the next of
        several metrics, then the lower trial. Failed trials do not count (their configuration cannot be trained to the
        end; `run.trials[0].model()` gives the model of the epochs before), nor those whose every value is NaN or
        infinite; of a run that has not ended it is the best of what there is.

        Raises:
            RunFailed: no trial that did not fail has come to the end of an epoch, or the metric is NaN or infinite in
                all of them.
        """
        with self._now() as (machine, status):
            if (record := words.best(machine)) is not None:
                return self._trial(record, machine.spec, status)
            trials = machine.trials.values()
            if any(trial.status == "completed" or (trial.status == "stopped" and trial.history) for trial in trials):
                raise RunFailed(
                    f"{self.directory}: no trial has a finite {machine.spec.metric}, so none is the best; "
                    "run.trials[0].history shows all metrics, "
                    'run.trials[0].model(checkpoint="last") gives a model'
                )
            raise RunFailed(
                f"{self.directory} ({status}): no trial has completed an epoch, or all failed{reasons(machine)}"
            )

    @property
    def pareto(self) -> list[Trial]:
        """The trials that no other beats in one of the run's objectives without being beaten in another, the best by
        the first metric first, which is `run.best`. A trial counts with the values of its best epoch by the first
        metric, and with its seconds; one that is not finite is the worst. Failed trials do not count, nor those
        without a finite value of the first. (With one metric: the best trial, and those that are equal to it.)"""
        with self._now() as (machine, status):
            return [self._trial(record, machine.spec, status) for record in words.pareto(machine)]

    def trial(self, number: int) -> Trial:
        """Return the trial of this number, as it stands."""
        with self._now() as (machine, status):
            return self._trial(machine.trials[number], machine.spec, status)

    def _trial(self, record: TrialRecord, spec: RunSpec, status: str) -> Trial:
        """Return a trial that stays as its record is now. `status`: of the run."""
        record = msgspec.structs.replace(
            record,
            history=dict(record.history),
            states={step: copy(state) for step, state in record.states.items()},
        )
        trial = Trial(record, spec, lambda: self._models(spec), lambda: manifest_of(self._layout))
        trial.status = words.status(record, status)
        return trial

    @property
    def _inputs(self) -> RunInputs:
        """Recipe, data, space, search and engine; opens the pickle of the run at the first use, and again when a resume
        has replaced it."""
        about = about_of(self._layout)
        if self._opened is None or self._pickled != _pickled(about):
            self._opened, self._pickled = unpickle(self._layout.recipe, about.python, self._trust), _pickled(about)
        return self._opened

    @property
    def _for_models(self) -> RunInputs:
        """The user's own objects while they are what was trained, so that models are of the user's own classes; once
        they were changed, the copies."""
        unchanged = self._live_digests is not None and all(self._live_digests)
        if self._live is not None and unchanged and _digests(self._live) == self._live_digests:
            return self._inputs if about_of(self._layout).recipes else self._live
        return self._inputs

    def _checked_data(self) -> Dataset:
        """Return the Dataset, after a check that it still gives the same partitions.

        Raises:
            RunDirectoryError: it does not.
        """
        same_data(self._layout, self._inputs.data)
        data: Dataset = self._inputs.data
        return data

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until nothing of it runs any more. Ctrl-C here stops a run of this process.

        Args:
            timeout: seconds to wait at most; None: any number.

        Returns:
            The run itself.

        Raises:
            TimeoutError: it goes on.
            RunFailed: every trial failed, or none has a finite value of the run's metric.
            HopyardError: what else ended its driver, where that is in this process; elsewhere its status says how it
                ended.
        """
        if timeout is not None:
            timeout = checks.seconds("wait(timeout=)", timeout, zero=True, none="for any")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        try:
            self._driver.over.wait(timeout)
        except KeyboardInterrupt as error:  # else the interpreter would wait for the run's end all the same
            self._driver.stop("interrupted by the user", stopped=False)
            raise without_frames(error) from None
        if self._driver.over.is_set() and self._driver.error is not None:
            raise self._driver.error
        while not self.done:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"{self.directory}: not over after {timeout:g} seconds; it goes on")
            time.sleep(min(LOOK_SECONDS, remaining))  # another process drives it
        with self._now() as (machine, status):
            if status == "failed":
                raise RunFailed(f"{self.directory}: {why_failed(machine)}")
        return self

    def stop(self) -> None:
        """End the driver of a run started with `wait=False`, and wait until nothing of it runs any more. `hy.resume`
        goes on: nothing is lost but the units at work.

        Raises:
            UsageError: another Run, of this process or another one, drives it.
        """
        if self._driver.over.is_set() and self.status == "running":
            raise UsageError(
                f"{self.directory}: this Run was read from its directory, and does not drive it; call stop() of the "
                "Run that hy.select, hy.fit or hy.resume returned, or end the process that drives it with SIGTERM"
            )
        self._driver.stop("stopped by the user")

    def logs(self, slot: int | None = None) -> str:
        """Return what its workers printed, all or the one of a slot; "" where nothing was, as with `hy.Inline`.

        Raises:
            SpecError: there is no such slot.
        """
        paths = {path.stem.removeprefix("slot-"): path for path in self._layout.logs.glob("slot-*.log")}
        logs = {int(number): path for number, path in paths.items() if number.isdecimal()}
        if slot is None:
            return "".join(read_log(logs[number]) for number in sorted(logs))
        if checks.whole("logs(slot=)", slot, 0) not in logs:
            available = ", ".join(map(str, sorted(logs))) or "none"
            raise SpecError(f"logs(slot={slot!r}): no such slot has a log; there are logs of: {available}")
        return read_log(logs[slot])

    def summary(self) -> dict[str, Any]:
        """Return what the report says of the whole run, and `hopyard show --json`, as plain values: "status", "trials"
        (their number), "completed", "failed", "wall_seconds", "idle_share" and so on. Reads the journal once.

        "hosts" has a dict for each host by name: "workers" (the most at a time), "partitions" (of both kinds that are
        in its cache, because they were there or a worker has gone over them), "rows_bytes" (of these; None where
        `manifest.json` cannot be read), "fetched_bytes" (of rows that were brought there during the run), "states" and
        "state_bytes" (that its workers have stored), "hop_bytes" (of States that they have taken over),
        "exchanged_bytes" (that they have sent to other members of gangs), "peak_bytes" (the most memory of one worker,
        to 1 %; 0 with `hy.Inline`). What a worker fetched before it was killed in the same unit is missing.
        "home_idle_seconds" are the slot-seconds in which slots were idle while trials waited for partitions that were
        at home on other hosts.
        """
        from hopyard.views.report import facts

        with self._now() as (machine, status):
            sizes = sizes_in(self._layout.manifest)
            return {"directory": str(self.directory), **facts(self._fold.lines(), machine, status, sizes)}

    def report(self) -> str:
        """Return the report, plain text."""
        from hopyard.views.report import report

        about = {**msgspec.to_builtins(about_of(self._layout)), "directory": self._layout.shown}
        with self._now() as (machine, status):
            return report(self._fold.lines(), machine, about, status, sizes_in(self._layout.manifest))

    def gantt(self, path: str | Path | None = None) -> Path:
        """Write a chart of who did what when: HTML that opens without network, or a picture (PNG, PDF, SVG) by the
        name's ending."""
        from hopyard.views import gantt

        with written("gantt", path, self._layout.gantt) as target, self._now():
            if is_picture(target):
                gantt.png(self._fold.lines(), target)
            else:
                with target.open("w", encoding="utf-8") as file:
                    file.writelines(gantt.html(self._fold.lines(), self.directory.name))
        return target

    def trace(self, path: str | Path | None = None) -> Path:
        """Write who did what when as a Chrome trace, JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open: a
        process for each host, a thread for each worker, an event for each unit, and instants for what was lost, failed
        or resumed. About 200 bytes a unit; default `trace.json` in the run directory."""
        from hopyard.views import trace

        with (
            written("trace", path, self._layout.trace, (".json",)) as target,
            self._now(),
            target.open("w", encoding="utf-8") as file,
        ):
            file.writelines(trace.chrome(self._fold.lines()))
        return target

    def plot(self, path: str | Path | None = None) -> Path:
        """Write what the search did: the metric of each trial by epoch, how far trials came and what rungs decided,
        parallel coordinates, the metric by each parameter, and of several objectives which trials none beats. HTML that
        opens without network, where a click follows one trial, or a picture (PNG, PDF, SVG) by the name's ending;
        default `plot.html` in the run directory."""
        from hopyard.views import plot

        with written("plot", path, self._layout.plot) as target, self._now() as (machine, _):
            distributions = self._distributions()
            if is_picture(target):
                plot.png(machine, target, distributions)
            else:
                target.write_text(plot.html(machine, self.directory.name, distributions), encoding="utf-8")
        return target

    def _distributions(self) -> dict[str, Any]:
        """Return those of the space, by parameter. None is known of a function, nor where the pickle is not opened."""
        try:
            space = self._inputs.space
        except HopyardError:
            return {}
        parameters = space.parameters if isinstance(space, Space) else {}
        return {name: value for name, value in parameters.items() if isinstance(value, Distribution)}

    def to_pandas(self) -> Any:
        """Return one row per trial as a DataFrame: `trial`, `status`, `epoch` (the best one, from 1), `seconds`, the
        configuration, the metrics of the best epoch, those of the last one as `last_…`, `digest` (of the final State),
        `error`, `reason` (of the search's newest decision).

        `seconds` is the time that workers spent on the trial: from each unit's dispatch to its end, what was done again
        included, and all members of a gang counted. A metric that has the name of one of these columns is in
        "metrics/error", a parameter that has the name of a metric or of such a column in "config/loss".
        """
        return by_trial(self.trials)

    def history(self, config: bool = False) -> Any:
        """Return one row per trial and epoch whose metrics are all in, as a DataFrame: `trial`, `epoch` (from 1),
        `seconds` and the metrics, as in `to_pandas`; with `config` the configuration of the trial as well. Plots take
        it as it is: `seaborn.lineplot(run.history(), x="epoch", y="val_loss", hue="trial")`. Reads the journal once.
        """
        checks.flag("config", config)
        with self._now():
            trials, seconds = self.trials, self._seconds()
        return by_epoch(trials, seconds, config)

    def to_optuna(self) -> Any:
        """Return the run as an optuna.Study in memory, for Optuna's dashboard and its plots: each trial with its
        number, parameters, distributions, state (stopped ones are "PRUNED"), the metric at its best epoch, and its
        values at all epochs. `user_attrs` have all metrics of that epoch, and the configuration. Opens the run's
        pickle, reads the journal once.

        Raises:
            UsageError: Optuna is not installed, or the run has no metric.
        """
        return self._study(prunes=True)

    def importance(self) -> dict[str, float]:
        """Return parameter → its share in what made trials good, the largest first, by Optuna's default method
        (PED-ANOVA). Stopped trials count with their best values. With several objectives: in what brought trials near
        the Pareto front.

        Raises:
            UsageError: Optuna is not installed, the run has no metric, or fewer than 4 trials ended with a value.
        """
        from hopyard.search.study import importance_of

        return importance_of(self._study(prunes=False))

    def _study(self, prunes: bool) -> Any:
        from hopyard.search.study import Result, study_of

        with self._now() as (machine, _):
            spec, trials = machine.spec, self.trials
            if not spec.objectives:
                raise UsageError(f"{self.directory}: it has no metric=, whose values a Study would hold")
            times: dict[int, tuple[float, float]] = {}

            def add(span: Span) -> None:
                start, end = times.get(span.trial, (span.start, span.start))
                times[span.trial] = start, max(end, span.end or span.start)

            chart(self._fold.lines(), add)
        results = []
        for trial in trials:
            notes: dict[str, Any] = {**trial.metrics, "epoch": trial.epoch, "config": trial.config}
            notes |= {"reason": trial.reason, "error": trial.error}
            results.append(Result(observation(trial._record, spec), notes, *times.get(trial.id, (None, None))))
        return study_of(self.directory.name, spec.objectives, self._inputs.space, results, prunes)

    def _seconds(self) -> dict[int, dict[int, float]]:
        """Return trial → epoch (from 1) → seconds that workers spent on its units that ended well."""
        seconds: dict[int, dict[int, float]] = {}

        def add(span: Span) -> None:
            if span.kind != "check" and span.outcome == "done" and span.end is not None:
                epochs = seconds.setdefault(span.trial, {})
                workers = max(1, len(span.members))
                epochs[span.epoch + 1] = epochs.get(span.epoch + 1, 0.0) + workers * (span.end - span.start)

        chart(self._fold.lines(), add)
        return seconds

    def _models(self, spec: RunSpec) -> ModelSource:
        """Return where its models come from; opens the pickled recipe at the first use."""
        inputs, about = self._for_models, about_of(self._layout)
        url = states_url(self._layout, about)
        source = self._source
        if source is None or source.plan.recipe is not inputs.recipe or (source.plan.spec, source.url) != (spec, url):
            quiet(about.backend)
            plan = Plan(inputs.recipe, manifest_of(self._layout), spec, threads=about.threads)
            transform = inputs.data.transform
            tracker = None if transform is None else RowTracker(transform)
            source = self._source = ModelSource(plan, open_store(url), url, self.directory, tracker)
        return source


def _digests(inputs: RunInputs) -> list[str]:
    """Return the digests of all code that makes a model, and its rows."""
    return [value_digest(inputs.recipe), value_digest(inputs.data.transform)]


def _pickled(about: About) -> tuple[dict[str, str], dict[str, str]]:
    """Return the part of run.json that changes whenever the pickle of the run does."""
    return about.recipes, about.digests


def why_failed(machine: Machine) -> str:
    """Return why a run has failed."""
    if all(trial.status == "failed" for trial in machine.trials.values()):
        return f"every trial failed{reasons(machine)}"
    closed = f"; {machine.search.closed}" if machine.search.closed else ""
    return f"no trial has a finite {machine.spec.metric}{closed}{reasons(machine)}"


def reasons(machine: Machine) -> str:
    """Return why trials failed, each error once, to be appended to an error."""
    errors: dict[str, list[TrialRecord]] = {}
    for trial in machine.trials.values():
        if trial.status == "failed":
            errors.setdefault(trial.error, []).append(trial)
    lines = []
    for error, trials in list(errors.items())[:3]:
        numbers = ", ".join(str(trial.id) for trial in trials[:10])
        numbers += f" and {len(trials) - 10} more" if len(trials) > 10 else ""
        who = f"trial {numbers}, config {trials[0].config}" if len(trials) == 1 else f"trials {numbers}"
        lines.append(f"\n  {who}: {error}")
    more = f"\n  and {words.count(len(errors) - 3, 'other error')}" if len(errors) > 3 else ""
    return ":" + "".join(lines) + more if lines else ""
