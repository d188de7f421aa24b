"""The `ctx` of a program's `main(args, ctx)`: the task's identity, its peers, its rows, and a way to report."""

from __future__ import annotations

import contextlib
import glob
import operator
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.checks import scalar, sequence, whole, without_scheme
from hopyard.core.programs.events import Reported
from hopyard.core.programs.feeding import feed_named
from hopyard.errors import SpecError
from hopyard.store.layout import Layout

if TYPE_CHECKING:
    from hopyard.agent.programs.session import TaskSession
    from hopyard.feeds.reader import Feed


present: ProgramContext | None = None
"""Context of the task that runs in this process."""


def context() -> ProgramContext:
    """Return the `ctx` of `main(args, ctx)`, for scripts, which have no such argument; in a task's process only.

    Raises:
        SpecError: this process is no task of a program.
    """
    if present is None:
        raise SpecError("hy.context(): this process is no task of a program; start it by hy.launch or `hopyard launch`")
    return present


class ProgramContext:
    """One task's view of its program.

    Attributes:
        role: "chief", "worker", "ps", …
        index: number within the role.
        rank: number among all tasks but parameter servers and evaluators; −1: it has none.
        world_size: how many have a rank.
        local_rank: number among those of its host.
        local_world_size: how many ranks its host has.
        peers: role → "address:port" of each of its tasks (TensorFlow's cluster spec).
        devices: names of its GPUs, as CUDA_VISIBLE_DEVICES takes them.
        directory: of the program; on other hosts than the driver's only where they share it.
        restart: number of times the program was started again.
        is_chief: whether this task should write checkpoints: the chief does, else rank 0.
    """

    def __init__(self, session: TaskSession) -> None:
        task = session.begin.task
        self._session = session
        self._feeds: dict[str, Feed] = {}
        self.role = task.role
        self.index = task.index
        self.rank = task.rank
        self.peers: dict[str, list[str]] = session.begin.peers
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.local_rank = task.local_rank
        self.local_world_size = task.local_world_size
        self.devices = list(task.gpus)
        self.directory = Path(session.host.directory)
        self.restart = session.begin.restart
        self.is_chief = task.rank == 0

    def __repr__(self) -> str:
        return f"<ProgramContext {self.role} {self.index}, rank {self.rank} of {self.world_size}>"

    @property
    def stop_requested(self) -> bool:
        """Whether the program is about to be ended: a loop that checks this can end by itself."""
        return self._session.stopping.is_set()

    def feed(self, name: str = "train") -> Feed:
        """Return the rows that `program.feed(…, name=name)` or `program.infer` send to this task.

        Raises:
            SpecError: `name` is no text; parameter servers and evaluators are not fed.
        """
        if self.rank < 0:
            raise SpecError(f"{self.role} {self.index} is not fed: rows go to chiefs and workers")
        name = feed_named(name, "ctx.feed")
        if name not in self._feeds:
            from hopyard.feeds.reader import Feed, refuse_process

            if os.getpid() != self._session.pid:
                refuse_process(name)
            self._feeds[name] = Feed(self._session.feed_server().queue(name))
        return self._feeds[name]

    def report(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Report metrics: they go into the program's journal, and `program.summary()` shows the last of each.

        Args:
            values: name → number (or a tensor of one element).
            step: of the training.
        """
        try:
            plain = {str(name): float(value) for name, value in values.items()}
            number = None if step is None else operator.index(step)
        except (TypeError, ValueError, AttributeError) as error:
            raise SpecError(
                f"ctx.report({values!r}, step={step!r}): values must be a dict of numbers, step an integer ({error})"
            ) from None
        with contextlib.suppress(OSError):
            self._session.pipe.send(
                Reported(slot=self._session.slot, incarnation=self._session.incarnation, values=plain, step=number)
            )

    def path(self, uri: str | os.PathLike[str]) -> str:
        """Return an absolute path or URL: relative paths are relative to the program's directory, URLs of files become
        paths, others stay."""
        text = without_scheme(str(os.fspath(uri)))
        if "://" in text or Path(text).is_absolute():
            return text
        return str(self.directory / text)

    def shard(self, data: Any, size: int = 0) -> Any:
        """Return this task's share of data that all tasks read by themselves, without Spark.

        Args:
            data: a glob pattern or a list (of files, for example): every `world_size`-th of it, in sorted order; or a
                hy.Dataset: every `world_size`-th of its training partitions, as stored.
            size: rows of a batch, for a Dataset.

        Returns:
            list, or for a Dataset an iterator of hy.Batch.
        """
        if self.rank < 0:
            raise SpecError(f"{self.role} {self.index} has no shard: it is no worker")
        data = scalar(data) if isinstance(data, str) else data
        if getattr(data, "ndim", None) == 1:
            data = sequence(data)
        if isinstance(data, str):
            files: Sequence[Any] = sorted(glob.glob(self.path(data)))  # noqa: PTH207 - an absolute pattern
            if not files:
                raise SpecError(f"ctx.shard({data!r}): no file matches")
            return list(files[self.rank :: self.world_size])
        if isinstance(data, Sequence):
            return list(data[self.rank :: self.world_size])
        if hasattr(data, "prepare"):
            return self._batches(data, whole("ctx.shard(size=)", size, 1))
        raise SpecError(f"ctx.shard(…) must be given a glob pattern, a list or a hy.Dataset, got {type(data).__name__}")

    def _batches(self, data: Any, size: int) -> Iterator[Any]:
        from hopyard.data.partitions.loader import PartitionLoader
        from hopyard.data.partitions.mapped import open_partition

        manifest = data.prepare()
        for partition in range(self.rank, len(manifest.train), self.world_size):
            yield from PartitionLoader(open_partition(manifest, "train", partition), size)

    def checkpoint(self, tree: Any, step: int) -> None:
        """Store a tree of tensors, numbers and strings, so that a program that is started again can go on from it.

        It is written under a temporary name, synced and renamed; the two that were written last are kept, whatever
        their steps. Call it on one task, or where each task has its own tree: trees are kept per role and index.

        Raises:
            SpecError: this host does not see the program's directory, so what is kept here would be lost to others.
        """
        from hopyard.store.journal import write_whole
        from hopyard.store.tree import encode
        from hopyard.system.files import sweep_parts

        folder = self._checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        sweep_parts(folder)  # nobody else writes here: an attempt ends before the next begins
        checkpoints = _checkpoint_files(folder)
        number = 1 + max(checkpoints, default=0)
        write_whole(folder / f"{number:09d}-{operator.index(step)}.safetensors", bytes(encode(tree)))
        for old in sorted(checkpoints)[:-1]:
            checkpoints[old].unlink(missing_ok=True)

    def restored(self) -> tuple[Any, int] | None:
        """Return (tree, step) of the last `checkpoint` of this role and index; None when there is none.

        Raises:
            SpecError: this host does not see the program's directory.
        """
        from hopyard.store.tree import decode

        checkpoints = _checkpoint_files(self._checkpoints)
        if not checkpoints:
            return None
        last = checkpoints[max(checkpoints)]
        return decode(last.read_bytes()), int(last.stem.partition("-")[2])

    @property
    def _checkpoints(self) -> Path:
        if not Layout(self.directory).program.exists():  # its driver has written there before any task began
            raise SpecError(
                f"ctx.checkpoint, ctx.restored: {socket.gethostname()} does not see the program's directory "
                f"{self.directory}, so what is kept here would be lost to the next attempt; give hy.launch(directory=) "
                "a folder that driver and executors share, or keep checkpoints in a store of your own"
            )
        return self.directory / "checkpoints" / f"{self.role}-{self.index}"


def _checkpoint_files(folder: Path) -> dict[int, Path]:
    """Return checkpoints by the number of their writing: a program may count its steps from 1 again, and clocks of
    hosts differ."""
    return {int(path.stem.partition("-")[0]): path for path in folder.glob("[0-9]*-*.safetensors")}
