"""Verbs for trackers: track."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Annotated

import typer

from hopyard.cli.common import GOOD, verb
from hopyard.errors import UsageError


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
) -> int:
    """Bring trackers up to date with runs, old or live; by default those that the runs were started with."""
    from hopyard.engines.followers import command, resolved
    from hopyard.store.layout import find
    from hopyard.tracking.progress import requested_by

    options = [f"tensorboard={tensorboard}"] * bool(tensorboard) + [f"mlflow={mlflow}"] * bool(mlflow)
    asked = resolved("--tensorboard or --mlflow", options)
    layouts = [find(run) for run in runs]
    trackers = [(layout, each) for layout in layouts for each in asked or requested_by(layout)]
    if missing := [layout.shown for layout in layouts if layout not in [each for each, _ in trackers]]:
        raise UsageError(f"{', '.join(missing)}: started without track=; give --tensorboard DIR or --mlflow URI")
    code, live = GOOD, list[subprocess.Popen[bytes]]()
    with contextlib.ExitStack() as stack:
        for layout, each in trackers:
            words, environment = command(each, layout.root, "--no-wait", *([] if follow else ["--once"]))
            process = stack.enter_context(subprocess.Popen(words, env=environment))
            live.append(process)
            if not follow:
                code = code or process.wait()
        return code or next(filter(None, [process.wait() for process in live]), GOOD)
