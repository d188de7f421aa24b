"""The verbs of trackers: tensorboard."""

from __future__ import annotations

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
        followers.start(["tensorboard"], layout.root, layout.tracking_log)
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
