"""Brings MLflow up to date: compares what its runs hold with their sheets, and sends the difference.

The state of MLflow is queried once, and again after each error: one search for the tag of the run. A follower that was
killed between a request and its answer has left a run without points at most, which is found by its tags.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from hopyard.errors import ResourceError, SpecError
from hopyard.store.layout import Layout
from hopyard.text import error_line, escaped, without_passwords
from hopyard.trackers import EXPERIMENT, MLFLOW, REGISTER, with_password
from hopyard.tracking.follower import News, Refused
from hopyard.tracking.mlflow.service import Elsewhere, Service, StoredRun
from hopyard.tracking.mlflow.sheets import ATTEMPT, POINTS, RUN, TRIAL, Key, Sheet, Sheets
from hopyard.views import words

if TYPE_CHECKING:
    from hopyard.driver.runs.run import Run

log = logging.getLogger(__name__)

GAP = 10.0
"""Seconds between two updates."""
UPLOADED = "hopyard.artifacts"
"""The tag that says what was uploaded: the end of the run that report and pictures show, the digest of the model and
the name under which it is registered. What was left out is missing, so that the next follower tries it again."""
ENDS = {"completed": "FINISHED", "partial": "FINISHED", "failed": "FAILED"}
"""Status of a run → that in MLflow. Others are "KILLED"."""
SOURCES = 20
"""The most sources in `run.json`."""


class _About(msgspec.Struct):
    """What is read of `run.json`."""

    data: str
    rows: int
    sources: list[str]


class Mlflow:
    """The runs of MLflow of one run. Owner of what is known of them.

    Args:
        service: MLflow.
        layout: of the run.
        register: the name under which the best model is registered; empty: it is not.
    """

    gap = GAP

    def __init__(self, service: Service, layout: Layout, register: str = "") -> None:
        self._service, self._layout, self._register = service, layout, register
        self._sheets = Sheets(escaped(layout.root.name))
        self._taken = 0
        """How many records of an update that failed are in the sheets."""
        self._experiment = ""
        """Its id; empty: what is known of MLflow may be out of date."""
        self._runs: dict[Key, StoredRun] = {}
        self._tried = ""
        """What was last uploaded, or left out because another try would not succeed either."""

    def update(self, news: News) -> None:
        """Send what MLflow lacks.

        Raises:
            Refused: it accepts nothing more of this run.
            OSError: the next try may succeed.
            ReadAgain: it has lost points, and gets the run from its start.
        """
        for record in news.records[self._taken :]:
            self._sheets.take(record)
        self._taken = len(news.records)
        experiment, self._experiment = self._experiment, ""
        with self._service as service:
            experiment = experiment or self._look(service)
            self._send(service, experiment, news)
        self._experiment, self._taken = experiment, 0

    def _look(self, service: Service) -> str:
        """Ask what MLflow has, and return the id of the experiment. Delete duplicates that a lost response left
        behind."""
        experiment, run = service.experiment(), self._sheets.run.tags[RUN]
        found = service.search(experiment, RUN, run)
        runs: dict[Key, StoredRun] = {}
        for each in sorted(found, key=lambda each: (each.deleted, POINTS not in each.tags, each.id)):
            trial, attempt = each.tags.get(TRIAL), each.tags.get(ATTEMPT, "0")
            key = None if trial is None else (int(trial), int(attempt))
            if key not in runs:
                runs[key] = each
            elif not each.deleted and POINTS not in each.tags:
                service.delete(each.id)
        if None in runs and runs[None].deleted:
            raise Refused(f"the run {runs[None].id} in MLflow was deleted; restore it, and `hopyard track` goes on")
        self._runs |= runs
        return experiment

    def _send(self, service: Service, experiment: str, news: News) -> None:
        over = news.status != "running"
        end = round(news.at * 1000)
        sheet = self._sheets.run
        best = words.best(news.machine)
        sheet.tags["hopyard.best"] = "" if best is None else str(best.id)
        if None not in self._runs:
            self._runs[None] = service.create(experiment, sheet.name, sheet.start, {RUN: sheet.tags[RUN]})
        parent = self._runs[None]
        if POINTS not in parent.tags:
            service.set_dataset(parent.id, self._dataset())
        self._bring(service, None, sheet)
        for key, each in self._sheets.trials.items():
            new = key not in self._runs
            if new:
                tags = {**each.tags, "mlflow.parentRunId": parent.id}
                self._runs[key] = service.create(experiment, each.name, each.start, tags)
            if new and not each.points and not each.end and not over:
                continue  # its parameters go with its first points, or with the next update
            if self._bring(service, key, each):
                self._set_status(service, key, each.end or (("KILLED", end) if over else None), end)
        self._set_status(service, None, (ENDS.get(news.status, "KILLED"), end) if over else None, end)
        if over:  # the status comes first: in a pod there may be no time for uploads
            self._finish(service, experiment, news, f"{news.status} {end}")

    def _bring(self, service: Service, key: Key, sheet: Sheet) -> bool:
        """Send what a run of MLflow lacks of its sheet; return False where it was deleted, or knows more."""
        run = self._runs[key]
        first = sheet.missing(run.tags.get(POINTS))
        if run.deleted or first is None:
            return False
        tags = {name: value for name, value in sheet.tags.items() if run.tags.get(name) != value}
        whole = POINTS in run.tags
        if not whole or tags or first < len(sheet.points):
            for batch in sheet.batches(first, tags, params=not whole):
                service.send(run.id, batch)
                run.tags.update(batch.tags)
        sheet.drop()
        return True

    def _set_status(self, service: Service, key: Key, end: tuple[str, int] | None, now: int) -> None:
        """Set status and time of the end; None: it goes on. `now`: the time up to which the journal was read."""
        run = self._runs[key]
        status, at = end or ("RUNNING", None)
        if end is None and now <= (run.end or 0):
            return  # it has ended in a part of the journal that is yet to be read again
        if run.status != status or (end and run.end != at):
            service.set_status(run.id, status, at)
            self._runs[key] = run._replace(status=status, end=at)

    def _dataset(self) -> dict[str, str]:
        """Return the data of the run, for MLflow."""
        about = msgspec.json.decode(self._layout.about.read_bytes(), type=_About)
        first, more = Path(about.sources[0]).name, len(about.sources) - 1
        count = more if more + 1 < SOURCES else f"at least {more}"
        return {
            "name": f"{first[:400]} and {count} more" if more else first[:500],
            "digest": about.data[:36],
            "source_type": "local",
            "source": msgspec.json.encode({"uri": about.sources[0]}).decode(),
            "profile": msgspec.json.encode({"num_rows": about.rows}).decode(),
        }

    def _finish(self, service: Service, experiment: str, news: News, ended: str) -> None:
        """Upload the report and the pictures and, once the run is over, its best model, unless MLflow has them. What
        cannot be uploaded is left out."""
        parent, digest = self._runs[None], _best_digest(news)
        wanted = " ".join(each for each in (ended, digest, self._register if digest else "") if each)
        if self._tried == wanted or f"{parent.tags.get(UPLOADED)} ".startswith(f"{wanted} "):
            return
        from hopyard.driver.runs.run import load

        run, done = load(self._layout.root), ""
        with tempfile.TemporaryDirectory() as folder:
            files, model = Path(folder, "files"), Path(folder, "model")
            files.mkdir()
            (files / "report.txt").write_text(run.report())
            run.gantt(files / "gantt.html")
            run.plot(files / "plot.html")
            try:
                service.upload(parent, files)
                done = ended
                if digest and self._log_model(service, experiment, digest, model, run, news.at):
                    done = wanted
            except Elsewhere as error:
                log.warning("%s left out: %s", "the best model is" if done else "report, pictures and model are", error)
        if done:
            self._sheets.run.tags[UPLOADED] = done
            self._bring(service, None, self._sheets.run)
        self._tried = wanted

    def _log_model(self, service: Service, experiment: str, digest: str, folder: Path, run: Run, at: float) -> bool:
        """Log the best model, and register it where that is asked for; return False where it cannot be built."""
        from hopyard.tracking.mlflow.model import DATA, describe

        try:
            run.best.save(folder / DATA)
        except (OSError, ResourceError) as error:  # the store is away, or the disk full: that may pass
            raise OSError(f"the best model: {error_line(error)}") from error
        except Exception as error:  # noqa: BLE001 - building it runs the user's recipe
            log.warning("the best model is left out: %s", error_line(error))
            return False
        parent = self._runs[None]
        model = service.model(experiment, parent.id, digest)
        if not model.ready:
            describe(folder, parent.id, model.id, at)
            service.log_model(parent.id, model, folder)
        if self._register:
            service.register(self._register, parent.id, model)
        return True


def _best_digest(news: News) -> str:
    """Return the digest of the best model; "": there is none, or the run may still get a better one."""
    trial = words.best(news.machine)
    if trial is None or trial.best is None or news.status not in ("completed", "partial"):
        return ""
    state = trial.stored.states.get((trial.best + 1) * news.machine.spec.partitions)
    return "" if state is None else state.digest


def connect(target: str, layout: Layout, environ: Mapping[str, str]) -> Mlflow:
    """Return the tracker.

    Args:
        target: URI of a server or a database, or "databricks", and the experiment behind a "#"; empty: that of
            MLFLOW_TRACKING_URI, which may have the password for the same one.
        layout: of the run.
        environ: credentials and experiment, by the names that MLflow gives them; HOPYARD_MLFLOW_REGISTER, the name
            under which the best model is registered.

    Raises:
        SpecError: there is no target.
        Refused: the target cannot be used.
    """
    register = environ.get(REGISTER, "")
    uri, _, experiment = with_password(f"mlflow={target or environ.get(MLFLOW, '')}", environ).partition("#")
    if experiment:
        environ = {**environ, EXPERIMENT: unquote(experiment), "MLFLOW_EXPERIMENT_ID": ""}
    if not uri:
        raise SpecError('track = "mlflow" needs MLFLOW_TRACKING_URI, or name the target: "mlflow=https://host:5000"')
    if uri.startswith(("http://", "https://")):
        from hopyard.tracking.mlflow.rest import Rest

        return Mlflow(Rest(uri, environ), layout, register)
    try:
        from hopyard.tracking.mlflow.store import Store
    except ImportError as error:
        raise Refused(
            f"mlflow={without_passwords(uri)} needs MLflow's client: pip install 'hopyard[mlflow]' ({error})"
        ) from None
    return Mlflow(Store(uri, environ), layout, register)
