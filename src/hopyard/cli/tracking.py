"""The verbs of trackers: track, tensorboard."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hopyard.cli.common import FAILED, GOOD, terminable, verb
from hopyard.errors import RunDirectoryError, UsageError


@verb
def track(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Run directories, or names under runs/.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the runs have ended.")] = False,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write TensorBoard's event files there.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Send to this MLflow: a server, sqlite:///FILE or databricks.")
    ] = None,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Register the best model in MLflow under this name.")
    ] = None,
) -> int:
    """Bring trackers up to date with runs, old or live; by default those that the runs were started with."""
    from hopyard.engines.followers import command, resolved
    from hopyard.store.layout import find
    from hopyard.trackers import REGISTER
    from hopyard.tracking.progress import requested_by

    options = {"tensorboard": tensorboard, "mlflow": mlflow}
    asked = [
        track
        for name, target in options.items()
        if target is not None
        for track in resolved(f"--{name}", f"{name}={target}")
    ]
    layouts = [find(run) for run in runs]
    trackers = [(layout, each) for layout in layouts for each in asked or requested_by(layout)]
    if missing := [layout.shown for layout in layouts if layout not in [each for each, _ in trackers]]:
        raise UsageError(f"{', '.join(missing)}: started without track=; give --tensorboard DIR or --mlflow URI")
    if register is not None and not any(each.startswith("mlflow=") for _, each in trackers):
        raise UsageError(f"--register {register}: no tracker here is MLflow; give --mlflow URI")
    terminable()
    code, live = GOOD, list[subprocess.Popen[bytes]]()
    with contextlib.ExitStack() as stack:
        try:
            for layout, each in trackers:
                words, environment = command(each, layout.root, "--no-wait", *([] if follow else ["--once"]))
                own = {} if register is None else {REGISTER: register}
                process = stack.enter_context(subprocess.Popen(words, env={**environment, **own}))
                live.append(process)
                if not follow:
                    code = code or process.wait()
            return code or next(filter(None, [process.wait() for process in live]), GOOD)
        except KeyboardInterrupt:  # SIGTERM too, which the followers have not got
            for process in live:
                process.terminate()
            raise


@verb
def tensorboard(
    names: Annotated[list[str], typer.Argument(metavar="RUN", help="Run directories, or their names under runs/.")],
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: this machine alone.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any. Default: TensorBoard's own.")] = None,
) -> int:
    """Show runs in TensorBoard.

    Their event files are brought up to date, and are kept so while the runs go on.
    """
    from hopyard.engines import followers
    from hopyard.store.layout import find
    from hopyard.tracking import RunStarted, read
    from hopyard.tracking.tensorboard import run_folder

    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError("the package tensorboard is not installed: pip install 'hopyard[tensorboard]'")
    folders: dict[str, Path] = {}
    for layout in dict.fromkeys(find(name) for name in names):
        start = next(read(layout.root), None)
        if not isinstance(start, RunStarted):
            raise RunDirectoryError(f"{layout.root}: the journal is empty, so there is nothing to show yet")
        folder = run_folder(layout.tensorboard, layout.root.name, start)
        folders[folder.name if layout.root.name in folders else layout.root.name] = folder
        followers.start(["tensorboard"], layout.root, layout.tracking_log, "--no-wait")
    terminable()
    with tempfile.TemporaryDirectory(prefix="hopyard-tensorboard-") as links:
        for name, folder in folders.items():
            (Path(links) / name).symlink_to(folder)
        shown = links if len(folders) > 1 else folder  # of one run, trials need no longer name than their own
        options = {"--logdir": shown, "--host": host, "--port": port}
        arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
        with subprocess.Popen([sys.executable, "-P", "-m", "tensorboard.main", *arguments]) as process:
            try:
                return FAILED if process.wait() else GOOD
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                raise
