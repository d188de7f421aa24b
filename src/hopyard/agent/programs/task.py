"""The process in which a task of a program runs: `python -m hopyard.agent.programs.task FD`, started by its agent.

It waits for its task, sets the environment that the task's framework reads, runs the user's `main`, and reports how
that ended. The agent detects what the user's code does to this process (exit, crash, hang).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hopyard.agent.import_hooks import find_spark_files
from hopyard.agent.parent import end_with
from hopyard.agent.programs.channel import Pipe
from hopyard.agent.programs.patches import patch_frameworks
from hopyard.agent.programs.session import TaskSession
from hopyard.core.messages import unpack_down
from hopyard.core.programs.events import Begin, Ended, Running
from hopyard.core.programs.messages import HostTasks
from hopyard.errors import HopyardError
from hopyard.system.network import interface_of, without_proxy
from hopyard.text import escaped, message_of, without_secrets

EXIT_SECONDS = 5.0
"""Time for what the user registered with `atexit`; after that the end of `main` is reported all the same."""
TEXT = 20_000
"""Characters of an error that are sent to the driver; the log has all."""
TRACE_LINES = 60
"""Lines of a traceback that are sent to the driver; the log has all."""


def main() -> None:
    """Receive the task, run it and report its end."""
    end_with(os.getppid())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    pipe = Pipe(Connection(int(sys.argv[1])), unpack_down)
    host, begin = pipe.receive(), pipe.receive()
    if not isinstance(host, HostTasks) or not isinstance(begin, Begin):
        os._exit(1)
    os.environ.update(host.environment)
    os.environ.update(begin.environment)
    os.environ["HOPYARD_DIRECTORY"] = host.directory
    peers = [peer.rpartition(":")[0] for role in begin.peers.values() for peer in role]
    os.environ.update(without_proxy(os.environ, [host.home, *peers]))  # TensorFlow's and JAX's gRPC would wait forever
    if host.interface:
        address = begin.peers[begin.task.role][begin.task.index].rpartition(":")[0]
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if name not in os.environ and (interface := interface_of(address)):
                os.environ[name] = interface
    session = TaskSession(pipe, host, begin, Path(sys.argv[2]))
    threading.Thread(target=session.listen, name="hopyard-listen", daemon=True).start()
    exit_code, ended = _run(session)
    lingers = session.drain(ended.error)
    sent = threading.Lock()

    def send_end() -> None:
        if sent.acquire(blocking=False):
            _flush()
            with contextlib.suppress(OSError):
                pipe.send(ended)

    ending = threading.Event()

    def late() -> None:
        ending.wait()
        time.sleep(EXIT_SECONDS)
        send_end()

    threading.Thread(target=late, name="hopyard-late", daemon=True).start()
    if ended.error:
        send_end()  # others wait for the cause
    else:
        _await_threads()
    ending.set()
    atexit._run_exitfuncs()  # what the user registered; then no interpreter's end, in which gloo and gRPC may hang
    send_end()
    if not ended.error and lingers:
        session.stopping.wait()
    os._exit(exit_code)


def _await_threads() -> None:
    """Wait for the user's threads, as the interpreter does at its end: one may write the last checkpoint."""
    timer = threading.Timer(EXIT_SECONDS, lambda: _print_threads(threading.main_thread()))
    timer.daemon = True
    timer.start()
    threading._shutdown()  # type: ignore[attr-defined]  # those of a ThreadPoolExecutor, too
    timer.cancel()


def _print_threads(main: threading.Thread) -> None:
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    print(f"main has returned; the task goes on until its threads end: {', '.join(names)}", flush=True)  # noqa: T201


def _run(session: TaskSession) -> tuple[int, Ended]:
    """Run the user's code; return (exit code, message about its end)."""
    slot, incarnation = session.slot, session.incarnation
    try:
        work = _load_main(session)
        session.pipe.send(Running(slot=slot, incarnation=incarnation))
        work()
    except SystemExit as end:
        if end.code in (None, 0):
            return 0, Ended(slot=slot, incarnation=incarnation, returned=True)
        code = int(end.code) & 0xFF if isinstance(end.code, int) else 1
        reason = plain(f"it ended by sys.exit({end.code!r})")
        print(reason, file=sys.stderr)  # noqa: T201 - the log
        return code, Ended(slot=slot, incarnation=incarnation, code=code, returned=True, error=reason)
    except BaseException as error:  # noqa: BLE001 - all that the user's code raises is reported
        trace = plain("".join(_user_traceback(error)))
        print(trace, file=sys.stderr)  # noqa: T201 - the log
        reason = explained(error)
        return 1, Ended(slot=slot, incarnation=incarnation, code=1, returned=True, error=reason, trace=trace)
    return 0, Ended(slot=slot, incarnation=incarnation, returned=True)


def _load_main(session: TaskSession) -> Any:
    """Return the user's code, ready to be called."""
    find_spark_files()
    patch_frameworks()
    if session.host.tensorflow1:
        from hopyard.agent.programs.tensorflow1 import present

        present()
    if compat := os.environ.get("HOPYARD_COMPAT"):
        import importlib

        importlib.import_module("hopyard.compat").install(compat)
    import cloudpickle

    from hopyard.agent.programs import context

    ctx = context.present = context.ProgramContext(session)
    if session.host.script:
        source, name, arguments = cloudpickle.loads(session.host.main)
        path = Path(name)
        if not path.is_file() or path.read_bytes() != source:  # another host
            path = session.folder / path.name
            path.write_bytes(source)
        sys.argv = [str(path), *arguments]
        sys.path.insert(0, str(path.parent))
        return lambda: runpy.run_path(str(path), run_name="__main__")
    main, args = cloudpickle.loads(session.host.main)
    return lambda: main(args, ctx)


def _user_traceback(error: BaseException) -> list[str]:
    """Return the traceback from the user's first line on, cut to a readable length. That of an error of Hopyard ends
    where the user's code called it: the message says what is wrong there."""
    from hopyard.code import places  # takes 0.05 s, for errors alone

    trace = error.__traceback__
    own_files = (__file__, runpy.__file__, "<frozen runpy>")
    user_trace = trace
    while user_trace is not None and user_trace.tb_frame.f_code.co_filename in own_files:
        user_trace = user_trace.tb_next
    try:
        told = traceback.TracebackException(type(error), error, user_trace or trace)
        if isinstance(error, HopyardError) and (count := places.before_hopyard(user_trace)):
            del told.stack[count:]
        lines = without_secrets("".join(told.format())).splitlines(keepends=True)
    except Exception:  # noqa: BLE001 - the user's own __str__
        lines = [*traceback.format_tb(user_trace or trace), type(error).__name__]
    if len(lines) > TRACE_LINES:
        lines = [*lines[: TRACE_LINES // 3], "  …\n", *lines[-2 * TRACE_LINES // 3 :]]
    return lines


def plain(text: str, limit: int = TEXT) -> str:
    """Return text that can be sent and shown: cut in its middle, and `escaped`."""
    text = without_secrets(text)  # first, as a cut URL is none
    if len(text) > limit:
        text = f"{text[: limit // 2]} … ({len(text):,} characters) … {text[-limit // 2 :]}"
    return escaped(text)


def explained(error: BaseException) -> str:
    """Return the error in one line, with the remedy where it is known."""
    from hopyard.frameworks.keras import strategies  # imports NumPy, which not every program needs

    reason = plain(f"{type(error).__name__}: {message_of(error)}".strip())
    if strategies.failed_by_it(error, reason):
        reason += ". " + strategies.SENTENCE
    return reason


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the user may have closed it, or put None there
            stream.flush()


if __name__ == "__main__":
    main()
