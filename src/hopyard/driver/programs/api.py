"""Launching a program: `hy.launch`. What was asked for is checked here, before anything is started."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Literal

from hopyard import __version__
from hopyard.checks import environment, flag, names, one_of, path, scalar, seconds, whole
from hopyard.code.pickling import culprit
from hopyard.core.messages import LIMIT
from hopyard.core.programs.events import ProgramSpec, fitted, spec_of
from hopyard.core.programs.machine import ProgramMachine
from hopyard.core.programs.messages import HostTasks
from hopyard.driver.directory import claim_url, claimed, freed_on_error
from hopyard.driver.pickling import PYTHON, dump
from hopyard.driver.programs.feeds import Feeding
from hopyard.driver.programs.loop import ProgramLoop
from hopyard.driver.programs.program import Program
from hopyard.driver.resuming import resumes
from hopyard.engines.default import chosen
from hopyard.engines.local import START_SECONDS, Local, gpus
from hopyard.errors import RunDirectoryError, SpecError
from hopyard.filesystems import Directory, absolute, reaching
from hopyard.frameworks.keras import strategies
from hopyard.ports.engines import AgentEngine, Engine, is_engine, starts_agents
from hopyard.spec import Timeouts
from hopyard.store.journal import retire, room
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from hopyard.store.states import FsspecStore, claim, disown, is_mark, private
from hopyard.system.files import sweep_parts
from hopyard.text import shown

log = logging.getLogger(__name__)


def launch(
    main: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    roles: Mapping[str, Any],
    engine: Engine | None = None,
    until: str | None = None,
    max_restarts: int = 0,
    restart_scope: Literal["program", "task"] = "program",
    max_time: float | None = None,
    tensorboard: bool | str | Path = False,
    directory: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    env: Mapping[str, str] | None = None,
    tensorflow1: bool = False,
    transport: Literal["auto"] | None = "auto",
    grace: float = 5.0,
    start_timeout: float | None = None,
    heartbeat_timeout: float = 15.0,
) -> Program:
    """Run somebody's distributed program: any TensorFlow program (parameter servers, chief, workers, evaluator), any
    torchrun program, any `jax.distributed` program.

    Args:
        main: a function `main(args, ctx)`, or the path of a script.
        args: for the function, anything that can be pickled; for a script, its arguments.
        roles: name → how many: {"chief": 1, "worker": 3, "ps": 2, "evaluator": 1}. A range (min, count) for programs
            that can go on with fewer, and with more when slots come, if `max_restarts` lets them be started again;
            hy.Role(2, gpus=1) for GPUs.
        engine: hy.Local() (the default: a process for each task), hy.Hosts([…]), hy.Spark(spark, workers=…)
            or hy.Kubernetes(workers, image).
        until: which tasks must end for the program to end: "chief" (the default where there is one; where there is none
            it means the task of rank 0, worker 0), "workers" (the default where there is no chief), "all", or the name
            of one task: "worker:0". In a role with a range, tasks below its least may be named. What then still runs
            (parameter servers, evaluators) is ended.
        max_restarts: times that it is started again when a task fails; it goes on from its own last checkpoint.
        restart_scope: what is started again: "program": all tasks; "task": only the one that failed, at its old
            address, where the program can take it (asynchronous training with parameter servers,
            ParameterServerStrategy). A host that is lost takes the address along, and a parameter server its variables:
            then all are started again.
        max_time: seconds after which the program is ended, and has failed: from the launch on, the wait for slots and
            all restarts included. Its tasks have `grace` seconds to end by themselves, as in `program.stop`.
        tensorboard: True: TensorBoard on the program's directory, or on this one; `program.tensorboard_url()`.
        directory: for its journal, logs and checkpoints, a path or a URL; default `runs/<time>-<word>`.
        store: path or URL for what `ctx.checkpoint` keeps, which all hosts reach; default: in `directory`.
        resume: True: a directory that has a program's journal, and a store that has checkpoints, may be used again;
            its checkpoints are kept.
        env: more environment for the tasks.
        tensorflow1: present `tf.compat.v1` as `tensorflow` to the program, for code written for TensorFlow 1.
        transport: "auto": gloo and NCCL get the network interface that leads to the peers (GLOO_SOCKET_IFNAME,
            NCCL_SOCKET_IFNAME, where `env` does not set it); None: they find one by themselves.
        grace: seconds that tasks have to end by themselves when the program is over.
        start_timeout: seconds until there must be a slot for each task, and until each must have begun; default: the
            engine's, or 120.
        heartbeat_timeout: seconds after which an agent that sends nothing, or a process that was stopped, is lost.

    Returns:
        Program: `.wait()`, `.feed(rows)`, `.infer(rows)`, `.summary()`, `.logs()`, `.stop()`; at once, while it starts.

    Raises:
        SpecError, RunDirectoryError: before anything is started.
        ResourceError: the engine cannot be opened.

    Example:
        >>> import hopyard as hy
        >>> def main(args, ctx):
        ...     ctx.report({"answer": args["x"] * ctx.world_size})
        >>> program = hy.launch(main, {"x": 21}, roles={"worker": 2}).wait()
        >>> [task["values"] for task in program.summary()["tasks"]]
        [{'answer': 42.0}, {'answer': 42.0}]
    """
    script = isinstance(main, (str, Path))
    engine = chosen() if engine is None else engine
    user_engine = None if engine is None else _starting_agents(engine)
    if start_timeout is None:
        start_timeout = START_SECONDS if user_engine is None else user_engine.start_timeout
    spec = spec_of(
        roles,
        until,
        max_restarts=whole("max_restarts", max_restarts, 0),
        restart_scope=one_of("restart_scope", restart_scope, ("program", "task")),
        max_time=None if max_time is None else seconds("max_time", max_time, none="for any"),
        grace=seconds("grace", grace, zero=True),
        start_timeout=seconds("start_timeout", start_timeout, zero=True),
        name=Path(str(main)).name if script else getattr(main, "__name__", type(main).__name__),
        script=script,
        run_id=secrets.token_hex(8),
    )
    resume, tensorflow1 = flag("resume", resume), flag("tensorflow1", tensorflow1)
    tensorboard = scalar(tensorboard)
    if not isinstance(tensorboard, bool):
        tensorboard = path("tensorboard", tensorboard, "True, False or a path")
    if directory is not None:
        directory = path("directory", directory)
    if store is None and directory is not None and "://" in str(directory):
        store = f"{absolute(directory)}/checkpoints"  # where all hosts see them
    store = None if store is None else _store(store)
    pickled = _script(Path(str(main)), args) if script else _function(main, args)
    variables = environment("env", {} if env is None else env)
    transport = one_of("transport", transport, ("auto", None))
    timeouts = Timeouts(heartbeat_timeout=heartbeat_timeout)
    agent_engine = _engine(user_engine, spec)
    if strategies.foreseen(Path(str(main)) if script else main, {**agent_engine.env, **variables}):
        log.warning("%s: %s", spec.name, strategies.SENTENCE)
    if tensorboard is not False and not agent_engine.apart and importlib.util.find_spec("tensorboard") is None:
        raise SpecError("tensorboard: the package is not installed; pip install tensorboard")
    own_slots = agent_engine.driver_workers if agent_engine.shared_places else None
    spec = fitted(spec, agent_engine.workers, own_slots=own_slots)
    with _owned_store(store, resumes(resume)) as owner:
        with claimed(directory) as (layout, lock):
            _prepare_directory(layout, lock, resumes(resume))
        with freed_on_error(lock):
            token = secrets.token_hex(16)  # with it workers accept rows
            logdir = "" if tensorboard is False else str(layout.root if tensorboard is True else tensorboard)
            setup = HostTasks(
                main=pickled,
                script=script,
                directory=str(layout.root),
                heartbeat_timeout=timeouts.heartbeat_timeout,
                token=token,
                home="",
                apart=False,
                tensorboard=os.path.abspath(logdir) if logdir and "://" not in logdir else logdir,  # noqa: PTH100
                tensorflow1=tensorflow1,
                environment=variables,
                interface=transport == "auto",
                store=store or "",
                owner=owner,
            )
            about = {
                "hopyard": __version__,
                "python": PYTHON,
                "engine": agent_engine.name,
                "threads": agent_engine.threads,
            }
            with room(layout.root):
                loop = ProgramLoop(layout, lock, ProgramMachine(spec), agent_engine, setup, about)
            feeding = Feeding(loop, layout, token)
            program = Program(layout, loop, feeding)
            try:
                loop.open(feeding)
            except BaseException:
                if not layout.program.stat().st_size:
                    layout.program.unlink()  # nothing has happened
                raise
    return program


def _function(main: Any, args: Any) -> bytes:
    if not callable(main):
        raise SpecError(f"main must be a function main(args, ctx), or the path of a script, got {shown(main)}")
    try:
        inspect.signature(main).bind(args, None)
    except TypeError as error:
        raise SpecError(f"main must be a function of two arguments, main(args, ctx); {shown(main)}: {error}") from None
    except ValueError:  # some functions of C say nothing of their arguments
        pass
    called = main if isinstance(main, (FunctionType, MethodType, partial)) else type(main).__call__
    if any(
        is_kind(called)
        for is_kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    ):
        raise SpecError(
            f"main = {main!r}: a call of it runs nothing, as it is a coroutine or a generator; give a plain function, "
            "for example one that calls asyncio.run(…)"
        )
    pickled = dump((main, args), "main, or its args,", "main")
    if len(pickled) > LIMIT // 2:
        raise SpecError(
            f"main: its pickle has {len(pickled):,} bytes, at most {LIMIT // 2:,} are sent to each process: it carries "
            f"data or weights{culprit((main, args), len(pickled))}; load them inside main, or feed them (program.feed)"
        )
    return pickled


def _script(path: Path, args: Any) -> bytes:
    try:
        source = path.read_bytes() if path.is_file() else None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"main must be the path of a Python script, got {shown(str(path))}: {why}") from error
    if source is None:
        raise SpecError(f"main must be the path of a Python script, got {shown(str(path))}: no such file")
    listed = list(args) if isinstance(args, Sequence) and not isinstance(args, str) else args
    arguments = [] if listed is None else names(listed)
    if arguments is None:
        raise SpecError(
            f'args of a script must be a list of strings (for example ["--steps", "100"]), got {shown(args)}'
        )
    return dump((source, str(path.absolute()), arguments), "the script")


def _starting_agents(engine: Engine) -> AgentEngine:
    if not is_engine(engine) or not starts_agents(engine):
        raise SpecError(
            f"engine must be hy.Local(…), hy.Hosts([…]), hy.Spark(…) or hy.Kubernetes(…), got {shown(engine)}; "
            "a program has processes of its own"
        )
    return engine


def _engine(engine: AgentEngine | None, spec: ProgramSpec) -> AgentEngine:
    """Return the user's engine, if it has room for the roles, or one of this host."""
    if engine is None:
        return Local(workers=spec.slots, devices="auto" if gpus() else None)
    if engine.driver_workers and engine.workers != spec.slots:
        raise SpecError(
            f"{type(engine).__name__}(workers={engine.workers}, driver_workers={engine.driver_workers}): roles are "
            f"{spec.slots} processes ({_role_counts(spec)}), and driver_workers= counts from the last of them: give "
            f"workers={spec.slots}"
        )
    if engine.workers < spec.least:
        advice = (
            "name more hosts, or more workers of one"
            if engine.name == "hosts"
            else (f"give {type(engine).__name__}(workers={spec.least})")
        )
        raise SpecError(
            f"roles need {spec.least} processes ({_role_counts(spec)}), the engine has workers={engine.workers}: "
            f"{advice}, or ask for fewer"
        )
    return engine


def _role_counts(spec: ProgramSpec) -> str:
    return ", ".join(f"{count} {name}" for name, (count, _, _) in spec.roles.items())


def _store(value: str | Path) -> str:
    url = absolute(path("store", value, "a path or URL"))
    if "://" in url and ("?" in url or "#" in url):
        raise SpecError(
            f'store = {shown(url)}: file systems take what follows "?" and "#" for something else; leave it out'
        )
    if private(url):
        raise SpecError(
            f"store = {shown(url)}: what is there lives in the memory of one process, and each task has a process of "
            "its own; give a path or URL that all of them reach"
        )
    return url


@contextmanager
def _owned_store(url: str | None, resume: bool) -> Iterator[str]:
    """Claim the folder of checkpoints for this launch, and yield its mark; "" where there is no folder. The mark is
    removed where the launch fails."""
    if not url:
        yield ""
        return
    mark = secrets.token_hex(8)
    with reaching(url, "open", SpecError, "store", "it must be a path or a URL where folders can be made"):
        _prepare_store(url, resume)
        store = FsspecStore(url)
        if not claim(store, store.marks() if resume else (), mark):
            raise RunDirectoryError(
                f"store = {shown(url)}: belongs to another program, which runs or was killed; give another store=, or "
                "resume=True to take it over once that program has ended"
            )
    try:
        yield mark
    except BaseException:
        disown(url, mark)
        raise


def _prepare_store(url: str, resume: bool) -> None:
    """Refuse a folder that is not empty, unless `resume`."""
    directory = Directory(url)
    directory.make()
    names = [*directory.folders(), *(name for name in directory.sizes() if not is_mark(name))]
    if names and not resume:
        shown_names = f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        raise RunDirectoryError(
            f"store = {shown(url)}: is not empty (it has {shown_names}); give another store=, or resume=True to "
            "continue from the checkpoints there"
        )


def _prepare_directory(layout: Layout, lock: Lock, resume: bool) -> None:
    """Prepare the directory, whose lock is ours, for a program. An earlier program's journal is kept under another
    name."""
    if layout.exists:
        raise RunDirectoryError(f"{layout.place}: holds a run; give another directory=")
    if layout.program.exists() and not resume:
        raise RunDirectoryError(
            f"{layout.place}: holds a program already; give another directory=, or resume=True to go on with its "
            "checkpoints"
        )
    claim_url(layout, lock, layout.program)
    with room(layout.root):
        layout.logs.mkdir(parents=True, exist_ok=True)
        retire(layout.program)
        sweep_parts(layout.root)
