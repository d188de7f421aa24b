"""Workers that are forks of one process: that they begin as new processes do, and what happens when something dies."""

from __future__ import annotations

import copy
import errno
import io
import json
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hopyard as hy
from hopyard.agent import template
from hopyard.engines.templates import MESSAGE, Refused, Templates, key_of, line_of, report_of, request, variables_of
from jobs import (
    CONFIGS,
    agents,
    alive,
    children,
    digests,
    driver,
    gone,
    linear,
    losses,
    memory,
    script,
    select,
    troubled,
    until,
)

pytestmark = pytest.mark.cold

VARIABLES = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "COLOR": "red"}


def test_variables_read_at_import_belong_to_the_key() -> None:
    key = key_of(("torch",), 1, VARIABLES)
    ignored = {"COLOR": "blue", "CUDA_VISIBLE_DEVICES": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    assert key == key_of(("torch",), 1, {**VARIABLES, **ignored})
    others = [
        key_of(("torch", "keras"), 1, VARIABLES),
        key_of(("torch",), 2, VARIABLES),
        *(key_of(("torch",), 1, {**VARIABLES, name: "x"}) for name in ("KERAS_BACKEND", "LD_PRELOAD", "PYTHONPATH")),
    ]
    assert len({key, *others}) == len(others) + 1


def test_a_request_has_variables_that_are_not_text() -> None:
    variables = {**VARIABLES, "OLDPWD": "/home/caf\udce9", "EMPTY": "", "CODE": "a=b\nc"}
    assert variables_of(request(variables)) == variables


@pytest.mark.parametrize("reason", ["x" * 9000, "\u4e00" * 9000, '"' * 9000, "/home/caf\udce9"])
def test_a_reason_fits_into_a_report(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(reason)

    monkeypatch.setattr(template, "runtime", fail)
    monkeypatch.setattr(template, "environment", lambda threads: {})
    monkeypatch.setattr(template, "quiet", lambda: None)
    text = line_of(Refused(template.prepare(1, ["torch"])))
    assert report_of(text[:MESSAGE]) == Refused(template.prepare(1, ["torch"]))


def test_a_copy_is_not_started() -> None:
    with hy.Local(1, devices=None) as engine:
        assert engine._standby.started and engine == hy.Local(1, devices=None)
        for other in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
            assert not other._standby.started
    assert not engine._standby.started


def test_the_outermost_with_stops_an_engine() -> None:
    with hy.Local(1, devices=None) as engine:
        with engine:
            pass
        assert engine._standby.started
    assert not engine._standby.started


class FakeTemplate:
    """Notes which are open."""

    open: ClassVar[list[int]] = []

    def __init__(self, frameworks: Sequence[str], threads: int, variables: Mapping[str, str], warn: Any) -> None:
        self.threads, self.refusal, self.ended = threads, "", False
        self.open.append(threads)

    def fork(self, variables: Mapping[str, str], log: Any) -> int:
        return self.threads

    def close(self, seconds: float = 0.0) -> None:
        if self.threads in self.open:
            self.open.remove(self.threads)


def test_the_template_that_was_not_used_for_longest_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.engines.templates.Template", FakeTemplate)
    pool = Templates()
    assert pool.fork((), 1, {}, io.BytesIO()) is None
    pool.start()
    for threads in (1, 2, 3, 4, 1, 5):
        assert pool.fork((), threads, {}, io.BytesIO()) == threads
    assert FakeTemplate.open == [1, 3, 4, 5]
    for each in pool._items.values():
        each.refusal = "it cannot"
    assert pool.fork((), 5, {}, io.BytesIO()) is None and FakeTemplate.open == [1, 3, 4]
    pool.stop()
    assert FakeTemplate.open == []


def test_a_fork_of_the_driver_leaves_its_templates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.engines.templates.Template", FakeTemplate)
    monkeypatch.setattr(FakeTemplate, "open", [])
    pool = Templates()
    pool.start()
    pool.fork((), 1, {}, io.BytesIO())
    pool._process += 1  # as it is in a fork
    pool.start()
    assert FakeTemplate.open == [1] and not pool._items
    pool.fork((), 1, {}, io.BytesIO())
    assert FakeTemplate.open == [1, 1]
    pool.stop()


def test_a_template_ends_whose_driver_ended_while_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "watched", lambda process: -1)
    monkeypatch.setattr(template, "prepare", lambda threads, frameworks: pytest.fail("it goes on"))
    template.serve(os.getppid() + 1, 1, [])


def test_a_stuck_template_does_not_block_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.engines.templates.TEMPLATE", ("sleep", "1000"))
    pool = Templates()
    pool.start()
    with open(os.devnull, "wb") as log:
        forks = [pool.fork((), 1, dict(os.environ), log)]
        (each,) = pool._items.values()
        each._requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        while len(forks) < 50 and forks[-1] is not None:
            forks.append(pool.fork((), 1, dict(os.environ), log))
    each._process.kill()
    assert forks.pop() is None
    for fork in forks:
        assert fork is not None
        fork.close()
    pool.stop()


@pytest.mark.parametrize(("number", "message"), [(errno.ETOOMANYREFS, ""), (errno.EMFILE, "Too many open files")])
def test_descriptors_under_way_are_as_many_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    """A template that still imports takes no requests, each of which has five. Agents beyond those start without it."""

    def fork(template: FakeTemplate, variables: Mapping[str, str], log: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FakeTemplate, "fork", fork)
    monkeypatch.setattr("hopyard.engines.templates.Template", FakeTemplate)
    pool = Templates()
    pool.start()
    if message:
        with pytest.raises(OSError, match=message):
            pool.fork((), 1, {}, None)  # type: ignore[arg-type]
    else:
        assert pool.fork((), 1, {}, None) is None  # type: ignore[arg-type]
    pool.stop()


def templates_of(engine: hy.Local) -> list[int]:
    return [template.pid for template in engine._standby._items.values()]


@pytest.fixture(scope="module")
def engine() -> Iterator[hy.Local]:
    with hy.Local(2, devices=None) as engine:
        yield engine


def witness(config: dict[str, Any]) -> Any:
    """Notes what its process is like."""
    import atexit
    import faulthandler
    import gc
    import logging
    import multiprocessing
    import threading

    path = Path(os.environ["WITNESS"]) / str(os.getpid())
    if not path.exists():
        limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT" in name}
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        facts = {
            "variables": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            "folder": os.getcwd(),
            "path": sys.path,
            "argv": sys.argv,
            "main": [vars(sys.modules["__main__"])["__spec__"].name, sys.modules["__main__"].__file__],
            "limits": limits,
            "signals": {n: str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
            "status": [status[name] for name in ("Umask", "SigBlk", "Cpus_allowed")],
            "files": [os.readlink(f"/proc/self/fd/{n}").rpartition("/")[0] for n in (0, 1, 2)],
            "group": os.getpgrp() == os.getpid(),
            "session": os.getsid(0),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "atexit": atexit._ncallbacks(),
            "faults": faulthandler.is_enabled(),
            "name": multiprocessing.current_process().name,
            "handlers": len(logging.getLogger().handlers),
            "collects": gc.isenabled(),
            "temporary": tempfile.gettempdir(),
            "zone": time.tzname,
            "open": len(os.listdir("/proc/self/fd")),
        }
        path.write_text(json.dumps(facts))
    return linear(config)


@pytest.mark.slow
def test_a_fork_is_like_a_new_process(tmp_path: Path, engine: hy.Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has what this process has by then, not what the template had when it began."""
    select(tmp_path / "first", engine=engine)
    (template,) = templates_of(engine)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOR", "red")
    monkeypatch.setenv("TZ", "ABC-3")
    monkeypatch.setenv("WITNESS", str(tmp_path / "cold"))
    monkeypatch.delenv("SHLVL", raising=False)
    facts = []
    for name, each in (("cold", hy.Local(2, devices=None)), ("warm", engine)):
        monkeypatch.setenv("WITNESS", str(tmp_path / name))
        (tmp_path / name).mkdir()
        select(tmp_path / f"run-{name}", witness, [{"lr": 0.1}] * 2, epochs=1, engine=each)
        texts = [path.read_text().replace(str(tmp_path / name), "witness") for path in (tmp_path / name).iterdir()]
        facts.append([json.loads(text.replace(str(tmp_path / f"run-{name}"), "run")) for text in texts])
    assert facts[0][0]["variables"]["COLOR"] == "red" and facts[0][0]["zone"] == ["ABC", "ABC"]
    for fact in facts[1]:
        assert fact == facts[0][0]
    assert templates_of(engine) == [template]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_by_another_fork(
    tmp_path: Path, engine: hy.Local, undisturbed: list[str]
) -> None:
    run = disturbed(tmp_path, "kill", engine)
    assert digests(run) == undisturbed
    (lost,) = losses(tmp_path / "run")
    assert lost.endswith("was killed by SIGKILL") and "forked" not in lost
    assert not alive(agents(tmp_path / "run"))


def disturbed(folder: Path, what: str, engine: hy.Local, **more: Any) -> Any:
    trouble = {"at": 15, "do": what, "once": str(folder / "once")}
    configs = [{**config, **trouble} if n == 1 else config for n, config in enumerate(CONFIGS)]
    return select(folder / "run", troubled, configs, engine=engine, **more)


@pytest.mark.slow
def test_a_template_that_is_killed_while_it_imports_is_replaced(tmp_path: Path) -> None:
    """Bug: the engine had no template for that framework any more."""
    warnings: list[str] = []
    pool = Templates(warnings.append)
    pool.start()
    variables = dict(os.environ)
    try:
        with (tmp_path / "log").open("wb") as log:
            first = pool.fork((), 1, variables, log)
            assert first is not None
            (template,) = pool._items.values()
            os.kill(template.pid, signal.SIGKILL)
            until(lambda: first.poll() is None and first.refused)
            first.close()
            assert warnings[0].endswith("it was killed by SIGKILL; the next worker has another one")
            second = pool.fork((), 1, variables, log)
            assert second is not None
            until(lambda: second.poll() is not None or second.pid)
            assert second.pid and not second.refused
            second.kill()
            until(lambda: second.poll() is not None)
            (template,) = pool._items.values()
            os.kill(template.pid, signal.SIGSTOP)  # it sees the next two lines at once
            third = pool.fork((), 1, variables, log)
            second.close()
            os.kill(template.pid, signal.SIGCONT)
            assert third is not None
            until(lambda: third.poll() is not None or third.pid)
            until(lambda: not Path(f"/proc/{second.pid}").exists())  # bug: it stayed a zombie
            third.kill()
            until(lambda: third.poll() is not None)
            third.close()
    finally:
        pool.stop()


@pytest.mark.slow
def test_a_template_that_is_killed_takes_its_workers_with_it_and_is_replaced(
    tmp_path: Path, engine: hy.Local, undisturbed: list[str]
) -> None:
    select(tmp_path / "first", engine=engine, epochs=1)
    (template,) = templates_of(engine)
    run = disturbed(tmp_path, "template", engine)
    assert digests(run) == undisturbed
    assert losses(tmp_path / "run")
    for reason in losses(tmp_path / "run"):
        assert reason.endswith(f"ended as process {template}, of which it was forked, was killed by SIGKILL")
    assert template not in templates_of(engine) and len(templates_of(engine)) == 1
    assert gone(agents(tmp_path / "run"))


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_behind(tmp_path: Path, undisturbed: list[str]) -> None:
    trouble = {"at": 15, "do": "driver SIGKILL", "once": str(tmp_path / "once")}
    configs = [{**CONFIGS[0], **trouble}, *CONFIGS[1:]]
    body = f"""
with hy.Local(2, devices=None) as engine:
    select(Path("run"), troubled, {configs!r}, engine=engine)
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    assert agents(tmp_path / "run")  # the second may be on its way still
    assert gone(children(process))
    assert digests(hy.resume(tmp_path / "run", engine=hy.Inline())) == undisturbed
    assert not memory(tmp_path)  # an agent that was killed on its way leaves it to the next start


@pytest.mark.slow
def test_stopping_lets_a_background_run_end(
    tmp_path: Path, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with hy.Local(2, devices=None) as engine:
        run = disturbed(tmp_path, f"wait for {tmp_path / 'file'}", engine, wait=False)
        while not (tmp_path / "once").exists():
            time.sleep(0.01)
        templates = templates_of(engine)
    assert alive(templates) and "engine was stopped" in caplog.text
    (tmp_path / "file").touch()
    run.wait()
    assert digests(run) == undisturbed
    assert gone(templates) and engine._standby._run_count == 0


TROUBLE = {
    "thread": (
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "threads are left by what was imported (python), which a fork would not have",
    ),
    "exit": ("os._exit(3)", "it ended with exit code 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", [pytest.param("thread", marks=pytest.mark.long), *(TROUBLE.keys() - {"thread"})])
def test_a_template_that_cannot_be_forked_is_done_without(
    tmp_path: Path,
    undisturbed: list[str],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each worker imports what it needs, as without a template; one line says so."""
    code, reason = TROUBLE[what]
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys, threading, time\nif 'template' in sys.orig_argv: {code}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with hy.Local(2, devices=None) as engine, caplog.at_level(logging.WARNING):
        for number in range(2):
            assert digests(select(tmp_path / str(number), engine=engine)) == undisturbed
    (record,) = [record for record in caplog.records if record.name == "hopyard.engines.templates"]
    assert record.getMessage().endswith(f"but each imports it: {reason}")


@pytest.mark.slow
@pytest.mark.long
def test_a_variable_that_an_import_sets_too_is_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: the value of the import was that of all runs."""
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)  # TensorFlow, where it was imported here, has set it
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ.setdefault('HDF5_PLUGIN_PATH', 'imported')\n")
    found = []
    with hy.Local(1, devices=None) as engine, caplog.at_level(logging.WARNING):
        for number, value in enumerate(["", "own", "own"]):
            if value:
                monkeypatch.setenv("HDF5_PLUGIN_PATH", value)
            monkeypatch.setenv("WITNESS", str(tmp_path / str(number)))
            (tmp_path / str(number)).mkdir()
            select(tmp_path / f"run-{number}", witness, [{"lr": 0.1}], epochs=1, engine=engine)
            (path,) = (tmp_path / str(number)).iterdir()
            found.append(json.loads(path.read_text())["variables"]["HDF5_PLUGIN_PATH"])
    assert found == ["imported", "own", "own"]
    (record,) = [record for record in caplog.records if record.name == "hopyard.engines.templates"]
    assert "HDF5_PLUGIN_PATH" in record.getMessage()


@pytest.mark.slow
def test_output_of_imports_is_in_each_workers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('imported by hand')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with hy.Local(2, devices=None) as engine:
        run = select(tmp_path / "run", engine=engine)
    for path in (Path(run.directory) / "logs").iterdir():
        assert path.read_text().startswith("imported by hand\n")
