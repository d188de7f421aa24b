"""The paths of a run directory.

journal.jsonl     the record: everything else can be made from it, or is what it names; `journal-1.jsonl` and so on
                  are of earlier starts in the directory that trained nothing
lock              held by the live driver
run.json          how to open the run without unpickling: versions, store, engine, rows, names
recipe.pkl        recipe, dataset, space, search and engine (cloudpickle)
manifest.json     the data: partitions, hashes, encodings
states/           safetensors, one a State, unless `store=` names another place; `states-<hex>/` where another run's
                  States were in it
logs/             what agents printed, one file an agent; logs of followers of trackers
report.txt        written when the run ends
summary.json      what `hopyard ls` shows of a run that has ended
gantt.html        written when the run ends
plot.html         written by `run.plot()`
tensorboard/      event files, unless they are written elsewhere
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

from hopyard import checks
from hopyard.errors import RunDirectoryError
from hopyard.store.urls import working
from hopyard.text import SHOWN, shown

_WORDS = (  # noqa: SIM905 - as a list they fill a page
    "amarillo ahtanum bravo cascade centennial challenger chinook citra cluster columbus comet crystal el-dorado "
    "eureka fuggle galaxy galena glacier golding hallertau herkules horizon liberty magnum mosaic northern nugget "
    "opal perle pilgrim polaris saaz sabro santiam simcoe sorachi sterling strata styrian summit target tettnang "
    "ultra vanguard warrior willamette zeus zythos"
).split()


class _Below:
    """A path below the root of a layout."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: Layout, owner: type) -> Path:
        return layout.root / self._name


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths under `root`, which is made absolute: they stay the same when the working directory changes."""

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())

    @property
    def url(self) -> str:
        """The URL of the run directory, whose working folder this is; "": it is at no URL."""
        return working.url_of(self.root)

    @property
    def place(self) -> str:
        """The URL of the run directory, or else its absolute path."""
        return self.url or str(self.root)

    @property
    def shown(self) -> str:
        """The root for people: its URL, or relative, if it is below the working directory."""
        if url := self.url:
            return url
        try:
            return str(self.root.relative_to(Path.cwd()))
        except (ValueError, OSError):  # it is elsewhere; the working directory is gone
            return str(self.root)

    journal = _Below("journal.jsonl")
    """JSON Lines, append only."""
    program = _Below("program.jsonl")
    """The journal of a program, instead of a run's; JSON Lines, append only."""
    lock = _Below("lock")
    """Locked (flock) by the driver while it lives."""
    about = _Below("run.json")
    """Plain facts about the run, JSON."""
    recipe = _Below("recipe.pkl")
    """The only pickle of a run directory."""
    manifest = _Below("manifest.json")
    """The run's own copy of the data's manifest."""
    states = _Below("states")
    """The directory of States where `store=` is not given."""
    logs = _Below("logs")
    """Directory of the logs, one file for each agent."""
    summary = _Below("summary.json")
    """What `hopyard ls` shows, JSON."""
    report = _Below("report.txt")
    """The final report, text."""
    plot = _Below("plot.html")
    """The pictures of the search, HTML."""
    gantt = _Below("gantt.html")
    """The chart of the run, HTML."""
    trace = _Below("trace.json")
    """The same as a Chrome trace."""
    tensorboard = _Below("tensorboard")
    """Directory of event files for TensorBoard."""

    @property
    def copying(self) -> tuple[Path, ...]:
        """The files that only the working folder of a URL has."""
        return self.root / working.URL, self.root / working.ID, self.root / working.FETCHED

    def log(self, slot: int) -> Path:
        """Return the file of what the agent of this slot printed."""
        return self.logs / f"slot-{slot}.log"

    def tracking_log(self, track: str) -> Path:
        """Return the log of the follower for this tracker, NAME or NAME=TARGET. It is the follower's lock too."""
        name, _, target = track.partition("=")
        target = re.sub(r"://[^/@]*@", "://", target)  # whoever the user is
        suffix = f"-{hashlib.sha256(target.encode()).hexdigest()[:8]}" if target else ""
        return self.logs / f"tracking-{name}{suffix}.log"

    def tracking_progress(self, track: str) -> Path:
        """Return the file that says how far this tracker is, JSON."""
        return self.tracking_log(track).with_suffix(".json")

    @property
    def exists(self) -> bool:
        """Whether there is a run."""
        return self.journal.exists()


def fresh(parent: Path = Path("runs")) -> Path:
    """Return a new run directory, which is not made yet: `runs/<time>-<word>`."""
    stream = random.Random(time.time_ns())  # noqa: S311
    for _ in range(100):
        path = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{stream.choice(_WORDS)}"
        if not path.exists():
            return path
    raise RunDirectoryError(f"no free name under {parent}")


def find(path: str | Path, programs: bool = False) -> Layout:
    """Return the layout of a run (or, with `programs`, of a program) that is there; a bare name is looked for under
    `runs/` too.

    Raises:
        SpecError: it is no path.
        RunDirectoryError: there is no run, or none that this user may read.
    """
    path = checks.path("directory", path)
    candidates = [Path(path), Path("runs") / path]
    if "://" in path:
        candidates = [working.made(path)]
        working.fetch(candidates[0])
    for candidate in candidates:
        layout = Layout(candidate)
        try:
            run, program = layout.exists, layout.program.exists()
        except OSError as error:
            raise RunDirectoryError(
                f"{_named(candidate)}: {error.strerror}; it must be a run directory that this user may read"
            ) from error
        if run or (programs and program):
            return layout
        if program:
            raise RunDirectoryError(
                f"{layout.root}: holds a program, not a run; `hopyard show` and `hopyard logs` read it, and "
                "hopyard.launch(…, directory=…, resume=True) goes on with its checkpoints"
            )
    if Layout(Path(path)).recipe.exists() and (Path(path) / "config.json").exists():
        raise RunDirectoryError(f"{path}: a saved model, not a run; hopyard.load_model(…) opens it")
    raise RunDirectoryError(
        f"{_named(path)}: no run here (no journal.jsonl); give a run directory, `hopyard ls` lists those under runs/"
    )


def _named(path: str | Path) -> str:
    """Return a path for the text of an error, cut where it is longer than any that can be there."""
    text = str(path)
    return text if len(text) <= 20 * SHOWN else shown(text)
