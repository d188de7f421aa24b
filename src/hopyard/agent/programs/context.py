"""The `ctx` of a program's `main(args, ctx)`: the task's identity, its peers, its rows, and a way to report."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.checks import flag, one_of, path, scalar, sequence, whole, without_scheme
from hopyard.core.programs.events import Reported
from hopyard.core.programs.feeding import feed_named
from hopyard.errors import DataError, SpecError
from hopyard.store.layout import Layout
from hopyard.text import shown

if TYPE_CHECKING:
    from hopyard.agent.programs.checkpoints import Checkpoints
    from hopyard.agent.programs.session import TaskSession
    from hopyard.feeds.reader import Feed


_TEXT_OPTIONS = ("encoding", "errors", "newline")

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

    def open(self, uri: str | os.PathLike[str], mode: str = "rb", **options: Any) -> Any:
        """Open a file at a path or URL as Python's `open` does; relative paths are relative to the program's directory.

        Args:
            uri: `ctx.open("s3://bucket/labels.txt", "r")`.
            mode: of Python's `open`.
            options: of a text mode: encoding=, errors=, newline=.

        Raises:
            SpecError: there is no such mode, or it has no such option.
            DataError: it cannot be opened; names the cause.
        """
        from hopyard.filesystems import open_to_read, open_url, reaching

        url = self.path(path("uri", uri, "a path or URL"))
        if not isinstance(mode, str) or not re.fullmatch(r"[rwax](?:[bt]?\+?|\+[bt])", mode):
            raise SpecError(f'ctx.open(mode={shown(mode)}): must be a mode of Python\'s open: "r", "rb", "w", "wb", …')
        if wrong := sorted(options.keys() - set(() if "b" in mode else _TEXT_OPTIONS)):
            raise SpecError(
                f"ctx.open(mode={mode!r}): no option {wrong[0]!r}; text modes have {', '.join(_TEXT_OPTIONS)}"
            )
        with reaching(url, "open", DataError, "ctx.open"):
            system, inner = open_url(url)
            if "r" not in mode or "+" in mode:
                return system.open(inner, mode, **options)
            file = open_to_read(system, inner)
            return file if "b" in mode else io.TextIOWrapper(file, **options)

    def shard(self, data: Any, size: int = 0) -> Any:
        """Return this task's share of data that all tasks read by themselves, without Spark.

        Args:
            data: a path, glob pattern, directory or URL: every `world_size`-th of its files, in sorted order, without
                those below it whose names begin with "_" or "."; a list: every `world_size`-th of it; or a
                hy.Dataset: every `world_size`-th of its training partitions, as stored.
            size: rows of a batch, for a Dataset.

        Returns:
            list, or for a Dataset an iterator of hy.Batch.

        Raises:
            DataError: no file matches, or the file system cannot be reached.
        """
        if self.rank < 0:
            raise SpecError(f"{self.role} {self.index} has no shard: it is no worker")
        data = scalar(data) if isinstance(data, str) else data
        if getattr(data, "ndim", None) == 1:
            data = sequence(data)
        if isinstance(data, (str, os.PathLike)):
            return self._files(data)[self.rank :: self.world_size]
        if isinstance(data, Sequence):
            return list(data[self.rank :: self.world_size])
        if hasattr(data, "prepare"):
            return self._batches(data, whole("ctx.shard(size=)", size, 1))
        raise SpecError(
            f"ctx.shard(…) must be given a path, glob pattern, URL, list or hy.Dataset, got {type(data).__name__}"
        )

    def files(self, source: Any, *, ahead: int = 2, keep: int = 1, shard: bool = True) -> Iterator[str]:
        """Return local paths of this task's share of files, for frameworks that open no URLs, such as TensorFlow.

        Files at URLs are copied into the agent's temporary directory (TMPDIR), a few ahead, and removed behind the
        reader, so that at most `ahead + keep` of them are there. Files of this host are not copied.

        Args:
            source: a path, glob pattern, directory or URL, or a list of these. Order and shares are those of `shard`.
            ahead: number of files that are copied ahead of the reader, at the same time.
            keep: number of paths that stay valid: more than 1 where several files are read at once, for example by
                `tf.data`'s `interleave(cycle_length=4)`.
            shard: False: all files, for an evaluator for example.

        Returns:
            Iterator of paths. An iteration is one pass over the files.

        Raises:
            DataError: no file matches, or one cannot be read; names the cause.
            ResourceError: no room for a copy.
        """
        from hopyard.agent.programs.local_files import local_paths

        ahead, keep = whole("ctx.files(ahead=)", ahead, 1), whole("ctx.files(keep=)", keep, 1)
        if flag("ctx.files(shard=)", shard) and self.rank < 0:
            raise SpecError(f"{self.role} {self.index} has no shard: it is no worker; shard=False gives all files")
        files = self._files(source)
        return local_paths(files[self.rank :: self.world_size] if shard else files, self._session.folder, ahead, keep)

    def _files(self, source: Any) -> list[str]:
        from hopyard.data.sources.paths import find

        sources = sequence(source)
        listed = sources if isinstance(sources, list) and sources else [source]
        paths = [self.path(path("source", one, "a path, glob, directory or URL")) for one in listed]
        return [file.path for file in find(paths, "input")]

    def _batches(self, data: Any, size: int) -> Iterator[Any]:
        from hopyard.data.partitions.loader import PartitionLoader
        from hopyard.data.partitions.mapped import open_partition

        manifest = data.prepare()
        for partition in range(self.rank, len(manifest.train), self.world_size):
            yield from PartitionLoader(open_partition(manifest, "train", partition), size)

    def checkpoint(self, content: Any, step: int) -> None:
        """Store what a program that is started again goes on from: in `hy.launch(store=)`, else in its directory.

        It is there whole or not at all. The two that were written last are kept, whatever their steps. Call it on one
        task, or where each task has a state of its own: they are kept per role and index.

        Args:
            content: a tree of tensors, numbers and strings, or a folder as a `pathlib.Path`, such as the one that
                `tf.train.Checkpoint` has written to.
            step: of the training.

        Raises:
            SpecError: the step is no integer; this host does not see the program's directory, so what is kept here
                would be lost to others.
            ResourceError: no room there, or it cannot be reached.
        """
        plain = operator.index(step) if hasattr(step, "__index__") else step  # frameworks have integers of their own
        self._checkpoints(self.role, self.index).put(content, whole("ctx.checkpoint(step=)", plain))

    def restored(self, role: str | None = None, index: int = 0) -> tuple[Any, int] | None:
        """Return (content, step) of the last `checkpoint` of this task; None when there is none. A folder is returned
        as the path of a copy on this host, which stays until the next call.

        Args:
            role: another task's checkpoint, where one task stores for all, or an evaluator reads: "worker", 0.
            index: of that task within its role.

        Raises:
            SpecError: this host does not see the program's directory; the program has no such role.
            ResourceError: it cannot be reached, or there is no room for a copy.
        """
        if role is None:
            return self._checkpoints(self.role, self.index).last()
        role = one_of("ctx.restored(role=)", role, tuple(self.peers))
        return self._checkpoints(role, whole("ctx.restored(index=)", index, 0)).last()

    def _checkpoints(self, role: str, index: int) -> Checkpoints:
        from hopyard.agent.programs.checkpoints import Checkpoints

        store = self._session.host.store
        if not store and not Layout(self.directory).program.exists():  # its driver wrote it before any task began
            raise SpecError(
                f"ctx.checkpoint, ctx.restored: {socket.gethostname()} does not see the program's directory "
                f"{self.directory}, so what is kept here would be lost to the next attempt; give hy.launch(store=) a "
                "URL or path, or directory= a folder, that driver and executors share"
            )
        root = store or self.directory / "checkpoints"
        return Checkpoints(str(root), f"{role}-{index}", self._session.folder, self._session.host.owner)
