"""Runs that meet faults which are not their own: real workers, real kills, real waits."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.messages import LIMIT
from hopyard.core.runs.events import Deferred, Failed, Interrupted, Retried, StoreAway, StoreBack
from hopyard.core.runs.machine import fold
from hopyard.data.shared.needed import needed
from hopyard.driver.runs.replay import replay
from hopyard.driver.runs.run import Run
from hopyard.errors import ResourceError, RunFailed, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.parallel import grouping
from hopyard.store.states import FsspecStore, LocalStore
from hopyard.system import oom
from jobs import (
    CONFIGS,
    WIDTH,
    dataset,
    digests,
    driver,
    first_time,
    journal,
    linear,
    memory,
    script,
    select,
    states,
    trials_of,
)

pytestmark = pytest.mark.slow


def clean(folder: Path, **more: Any) -> list[str]:
    """The digests of the same run without any trouble."""
    return digests(select(folder / "clean", **more))


def linear_of(config: dict[str, Any], trouble: Any) -> Linear:
    """A Linear that does `trouble` before each batch."""

    class Troubled(Linear):
        def train(self, batch: Any) -> Any:
            trouble()
            return super().train(batch)

    return Troubled(WIDTH, 2, lr=config["lr"], batch_size=16)


def plain(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"lr": config["lr"]} for config in configs]


def reset_for_a_while(config: dict[str, Any]) -> Linear:
    """A file server that is away for three seconds after it was first asked."""
    first = Path(config["folder"]) / "first"

    def ask() -> None:
        if first_time(str(first)):
            os.utime(first)
        if time.time() - first.stat().st_mtime < 3:
            raise ConnectionResetError(104, "Connection reset by peer")

    if config["where"] == "build":
        ask()
        return linear(config)
    return linear_of(config, ask)


@pytest.mark.parametrize("where", ["build", "train"])
def test_a_file_server_that_blinks_costs_no_trial(tmp_path: Path, where: str) -> None:
    """Bug: three failures within milliseconds, then all trials were lost for ever."""
    configs = [{**config, "folder": str(tmp_path), "where": where} for config in CONFIGS]
    run = select(tmp_path / "run", reset_for_a_while, configs, engine=hy.Local(workers=2))
    assert run.status == "completed"
    assert digests(run) == clean(tmp_path)
    waits = [line for line in journal(tmp_path / "run") if isinstance(line, Deferred)]
    assert waits and all(line.fault == "system" and line.until > line.at for line in waits)


class Away:
    """A store that is away for so many seconds from the third State on."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        self.until, self.puts, self.refused = 0.0, 0, 0
        put = FsspecStore.put

        def refusing(store: FsspecStore, ref: Any, data: memoryview) -> None:
            self.puts += 1
            if self.puts == 3:
                self.until = time.monotonic() + seconds
            if time.monotonic() < self.until:
                self.refused += 1
                raise TimeoutError
            put(store, ref, data)

        patch.setattr(FsspecStore, "put", refusing)


def test_a_store_that_is_away_for_seconds_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: one time-out of a put ended the run with "make room"."""
    wanted = clean(tmp_path)
    away = Away(monkeypatch, 4.0)
    run = select(tmp_path / "run", store="memory://faults")
    assert run.status == "completed" and digests(run) == wanted
    assert away.refused >= 2
    kinds = [type(line) for line in journal(tmp_path / "run") if isinstance(line, (StoreAway, StoreBack))]
    assert kinds == [StoreAway, StoreBack]
    assert "waits for the store" in caplog.text and "can store States again" in caplog.text


def without_folder(config: dict[str, Any]) -> Linear:
    """The folder of the States is not there for four seconds: a file server that is not mounted."""
    folder = Path(config["folder"])

    def take_away() -> None:
        if first_time(str(folder / "once")):
            states = next((folder / "run").glob("states*"))
            states.rename(folder / "away")
            threading.Timer(4.0, (folder / "away").rename, [states]).start()

    return linear_of(config, take_away)


@pytest.mark.long
def test_a_folder_of_states_that_is_away_for_seconds_costs_nothing(tmp_path: Path) -> None:
    configs = [{**config, "folder": str(tmp_path)} for config in CONFIGS]
    run = select(tmp_path / "run", without_folder, configs, engine=hy.Local(workers=2), epochs=3)
    assert run.status == "completed"
    assert digests(run) == clean(tmp_path, epochs=3)


def linear_that_ends(config: dict[str, Any], before: Callable[[], object]) -> Linear:
    """Its worker ends, once, in the second epoch, when the State at the end of the first is stored."""
    folder = Path(config["folder"])
    journaled = folder / "run" / "journal.jsonl"
    model: Linear

    def end() -> None:
        if model.steps >= 12 and first_time(str(folder / "once")):
            until(lambda: b'"Durable"' in journaled.read_bytes())
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    model = linear_of(config, end)
    return model


def without_store(config: dict[str, Any]) -> Linear:
    """When the worker ends a file lies in the place of the folder of the States."""
    folder = Path(config["folder"])

    def take_away() -> None:
        states = next((folder / "run").glob("states*"))
        states.rename(folder / "away")
        states.touch()

    return linear_that_ends(config, take_away)


def test_a_worker_starts_while_the_store_is_away(tmp_path: Path) -> None:
    """Bug: it ended at once, so did its successors, and the run with them."""
    journaled = tmp_path / "run" / "journal.jsonl"

    def bring_back() -> None:
        until(lambda: journaled.exists() and journaled.read_bytes().count(b'"Joined"') > 1)
        states = next((tmp_path / "run").glob("states*"))
        states.unlink()
        (tmp_path / "away").rename(states)

    helper = threading.Thread(target=bring_back)
    helper.start()
    configs = [{**CONFIGS[0], "folder": str(tmp_path)}]
    run = select(tmp_path / "run", without_store, configs, engine=hy.Local(workers=1))
    helper.join()
    assert run.status == "completed" and fold(journal(tmp_path / "run")).trials[0].strikes == {}
    assert digests(run) == clean(tmp_path, configs=CONFIGS[:1])


def blocked(config: dict[str, Any]) -> Linear:
    """A store that does not answer who reads before the driver was told of it."""
    journaled = Path(config["folder"]) / "run" / "journal.jsonl"
    if not hasattr(LocalStore, "get_at_once"):
        LocalStore.get_at_once = LocalStore.get  # type: ignore[attr-defined]

        def get(store: Any, ref: Any) -> Any:
            until(lambda: b'"StoreAway"' in journaled.read_bytes())
            return store.get_at_once(ref)

        LocalStore.get = get  # type: ignore[assignment, method-assign]
    return linear_that_ends(config, lambda: None)


def test_a_store_that_blocks_who_reads_is_away(tmp_path: Path) -> None:
    """Bug: nothing was said, and the worker counted as hung."""
    configs = [{**CONFIGS[0], "folder": str(tmp_path)}]
    run = select(
        tmp_path / "run", blocked, configs, engine=hy.Local(workers=1), timeouts=hy.Timeouts(stall_timeout=20.0)
    )
    assert run.status == "completed"
    lines = [line for line in journal(tmp_path / "run") if isinstance(line, (StoreAway, StoreBack, Lost))]
    assert [type(line) for line in lines] == [Lost, StoreAway, StoreBack]


def own_memory() -> Path:
    """The folder in shared memory of this worker's run."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.endswith("/lock") and "/hopyard-" in target:
                return Path(target).parent
    raise AssertionError("this worker has no folder in shared memory")


def until(test: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not test() and time.monotonic() < end:
        time.sleep(0.02)


def logged_out(config: dict[str, Any]) -> Linear:
    """The user logs out, and systemd removes what is theirs in shared memory (`RemoveIPC=yes`): when the first epoch's
    end has been laid, and before another worker took it. States are stored late: after one was asked for."""
    from hopyard.store.arena import Arena

    folder = Path(config["folder"])
    told = folder / "run" / "journal.jsonl"
    if not hasattr(Arena, "lay_only"):  # this process has not been here yet
        Arena.lay_only, LocalStore.put_at_once = Arena.lay, LocalStore.put  # type: ignore[attr-defined]

        def lay(arena: Any, ref: Any, layout: Any) -> str:
            where: str = arena.lay_only(ref, layout)
            if ref.step == 4 and first_time(str(folder / "once")):
                until(lambda: told.read_bytes().count(b'"Joined"') > 1)
                shutil.rmtree(own_memory())
            return where

        def put(store: Any, ref: Any, data: memoryview) -> None:
            until(lambda: b'"missing":[' in told.read_bytes())
            store.put_at_once(ref, data)

        Arena.lay, LocalStore.put = lay, put  # type: ignore[assignment, method-assign]
    return linear(config)


def test_shared_memory_that_is_removed_while_the_run_runs_costs_no_trial(tmp_path: Path) -> None:
    """Bug: every hop before a State was stored ended its trial, though its maker had it in memory."""
    more: Any = {"epochs": 3, "parallel": hy.Hopper(group="off")}
    configs = [{"lr": 0.1, "folder": str(tmp_path)}]  # so that the other worker validates: each epoch's end hops
    run = select(tmp_path / "run", logged_out, configs, engine=hy.Local(workers=2), **more)
    assert (tmp_path / "once").exists()
    assert run.status == "completed" and fold(journal(tmp_path / "run")).trials[0].strikes == {}
    assert digests(run) == clean(tmp_path, configs=CONFIGS[:1], **more)
    assert not memory(tmp_path)
    missed = [line for line in journal(tmp_path / "run") if isinstance(line, Failed)]
    assert missed and all(line.missing is not None for line in missed)


def starved(config: dict[str, Any]) -> Linear:
    """Runs out of memory so often."""

    def allocate() -> None:
        for number in range(config["times"]):
            if first_time(f"{config['folder']}/{number}"):
                raise MemoryError

    return linear_of(config, allocate)


def test_memory_that_runs_out_once_costs_a_worker(tmp_path: Path) -> None:
    configs = [{"lr": 0.1, "folder": str(tmp_path), "times": 1}, *plain(CONFIGS[1:])]
    configs = [{"folder": str(tmp_path), "times": 0, **config} for config in configs]
    run = select(tmp_path / "run", starved, configs, engine=hy.Local(workers=2))
    assert run.status == "completed" and digests(run) == clean(tmp_path)
    lines = journal(tmp_path / "run")
    assert [line.fault for line in lines if isinstance(line, Deferred)] == ["memory"]
    assert len([line for line in lines if isinstance(line, Lost)]) == 1


@pytest.mark.long
def test_memory_that_runs_out_twice_ends_the_trial_until_it_is_asked_for_again(tmp_path: Path) -> None:
    for config in (configs := [{**config, "folder": str(tmp_path), "times": 0} for config in CONFIGS]):
        config["times"] = 0
    configs[1]["times"] = 2  # the second batch meets the second of it
    run = select(tmp_path / "run", starved, configs, engine=hy.Local(workers=2))
    assert run.status == "partial"
    trial = trials_of(tmp_path / "run")[1]
    assert (trial["status"], trial["fault"]) == ("failed", "memory") and "smaller batch_size" in trial["error"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run = hy.resume(tmp_path / "run", failed=True)
    wanted = clean(tmp_path)
    assert run.status == "completed" and digests(run) == wanted
    assert [line.trial for line in journal(tmp_path / "run") if isinstance(line, Retried)] == [1]
    run = hy.resume(tmp_path / "copy", failed=True, recipe=smaller, engine=hy.Inline())
    assert run.status == "completed" and [n for n in range(4) if digests(run)[n] != wanted[n]] == [1]
    (asked,) = [line for line in journal(tmp_path / "copy") if isinstance(line, Retried)]
    assert asked.trial == 1 and len(asked.recipe) == 64
    assert run.trials[1].model("last").batch_size == 8
    assert replay(tmp_path / "copy", engine=hy.Inline()).different == []


def smaller(config: dict[str, Any]) -> Linear:
    return Linear(WIDTH, 2, lr=config["lr"], batch_size=8)


def killed_for_memory(config: dict[str, Any]) -> Linear:
    """As the kernel does it: SIGKILL, and one more in the count of the cgroup."""

    def kill() -> None:
        if first_time(f"{config['folder']}/once"):
            counter = Path(config["folder"]) / "memory.events"
            counter.write_text("oom 1\noom_kill 1\n")
            os.kill(os.getpid(), signal.SIGKILL)

    return linear_of(config, kill)


def test_a_worker_that_the_kernel_killed_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom 0\noom_kill 0\n")
    monkeypatch.setattr(oom, "counter", lambda pid: counter)
    configs = [{**config, "folder": str(tmp_path)} for config in CONFIGS]
    run = select(tmp_path / "run", killed_for_memory, configs, engine=hy.Local(workers=2))
    assert run.status == "completed" and digests(run) == clean(tmp_path)
    (lost,) = [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]
    assert lost.fault == "memory" and "ran out" in lost.reason


def interrupting(config: dict[str, Any]) -> Linear:
    """Raises, in its first build or in its fourth batch, what Ctrl-C raises in a driver."""
    model: Linear

    def interrupt() -> None:
        if config.get("where") == "train" and model.steps == 3:
            raise KeyboardInterrupt("by the recipe")

    if config.get("where") == "build":
        raise KeyboardInterrupt("by the recipe")
    model = linear_of(config, interrupt)
    return model


def test_a_recipe_that_raises_what_ctrl_c_raises_ends_its_trial(tmp_path: Path) -> None:
    """Bug: it ended its worker, and after three of them the trial was poison, without a traceback."""
    configs = [{"lr": 0.1, "where": "train"}, {"lr": 0.1, "where": "build"}, *CONFIGS[1:]]
    run = select(tmp_path / "run", interrupting, configs, engine=hy.Local(workers=1))
    assert [trial.status for trial in run.trials] == ["failed", "failed", "completed", "completed", "completed"]
    trained, built, *_ = trials_of(tmp_path / "run")
    for trial in (trained, built):
        assert trial["fault"] == "user" and "KeyboardInterrupt: by the recipe" in trial["error"]
    assert "raise KeyboardInterrupt" in trained["trace"]
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]


def test_inline_it_interrupts_the_driver(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", interrupting, [{"lr": 0.1, "where": "train"}])
    assert isinstance(journal(tmp_path / "run")[-1], Interrupted)


# ---------------------------------------------------------------- tried again


def poisonous(config: dict[str, Any]) -> Linear:
    """Ends its worker, once a State of the first trial is durable, as long as there is a file that says so."""
    model: Linear

    def kill() -> None:
        if config.get("poison") and model.steps >= 10 and (poison := Path(config["poison"])).exists():
            facts = poison.with_name("run") / "journal.jsonl"
            until(lambda: '"ref":[0,' in facts.read_text())
            os.kill(os.getpid(), signal.SIGKILL)

    model = linear_of(config, kill)
    return model


def test_a_poisoned_trial_goes_on_when_its_cause_is_gone(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.touch()
    configs = [{"lr": 0.1, "poison": str(poison)}, *CONFIGS[1:]]
    run = select(tmp_path / "run", poisonous, configs, engine=hy.Local(workers=2))
    assert run.status == "partial" and "poison" in run.trials[0].error
    assert trials_of(tmp_path / "run")[0]["fault"] == "system"
    again = hy.resume(tmp_path / "run")
    assert again.status == "partial"  # nothing was trained
    assert [ref for ref in states(tmp_path / "run").refs() if ref.trial == 0]  # its State was kept
    assert "hopyard resume" in run.report() and "--failed" in run.report()
    rows, needing = dataset().prepare().path, str((tmp_path / "run").resolve())
    assert needing in needed(rows)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    anew = hy.resume(tmp_path / "copy", failed=True, recipe=mended)  # a fixed C extension, say; the cause is there
    wanted = clean(tmp_path)
    assert anew.status == "completed" and digests(anew) == wanted
    poison.unlink()
    run = hy.resume(tmp_path / "run", failed=True)
    assert run.status == "completed" and digests(run) == wanted
    assert fold(journal(tmp_path / "run")).trials[0].strikes == {} and needing not in needed(rows)
    (asked,) = [line for line in journal(tmp_path / "run") if isinstance(line, Retried)]
    assert (asked.trial, asked.recipe) == (0, "")
    assert replay(tmp_path / "run", engine=hy.Inline()).different == []


def broken(config: dict[str, Any]) -> Linear:
    """Has a mistake for the second configuration."""

    def mistake() -> None:
        if config["lr"] == CONFIGS[1]["lr"]:
            raise RuntimeError("shapes differ")

    return linear_of(config, mistake)


def mended(config: dict[str, Any]) -> Linear:
    return linear(config)


def test_a_trial_that_its_recipe_ended_begins_anew_with_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    run = select(directory, broken)
    assert [trial.status for trial in run.trials] == ["completed", "failed", "completed", "completed"]
    first = digests(run)
    run = hy.resume(directory, failed=True)
    assert run.status == "partial" and "trial 1: left as before" in caplog.text
    run = hy.resume(directory, failed=True, recipe=mended)
    assert run.status == "completed"
    wanted = clean(tmp_path)
    assert digests(run) == wanted and [d for n, d in enumerate(first) if n != 1] == [wanted[n] for n in (0, 2, 3)]
    (asked,) = [line for line in journal(directory) if isinstance(line, Retried)]
    assert len(asked.recipe) == 64
    report = hy.load(directory).report()
    assert f"mended (digest {asked.recipe[:16]}): trials 1" in report
    assert "broken (digest " in report and "trials 0, 2, 3" in report
    assert hy.load(directory).trials[1].model("last") is not None
    assert replay(directory, engine=hy.Inline()).different == []
    assert hy.resume(directory, failed=True).status == "completed"  # there is nothing left to try


class Closed(hy.Local):
    """An engine that cannot bring up a worker."""

    def open(self, *args: Any, **more: Any) -> Any:
        raise ResourceError("no worker can be started")


def laden(load: bytes, config: dict[str, Any]) -> Linear:
    return smaller(config)


@pytest.mark.parametrize(
    ("recipe", "engine", "error"),
    [
        (smaller, Closed(), "can be started"),
        (partial(laden, bytes(LIMIT // 2)), hy.Inline(), "recipe: its pickle has"),
    ],
)
def test_a_recipe_with_which_no_trial_began_anew_trains_nothing(
    tmp_path: Path, recipe: Any, engine: Any, error: str
) -> None:
    """Bug: the next plain resume went on from States of the old recipe with the new one, or raised its error again."""
    configs = [{"folder": str(tmp_path), "times": 0, **config} for config in CONFIGS]
    configs[1]["times"] = 2
    select(tmp_path / "run", starved, configs, engine=hy.Inline())
    assert trials_of(tmp_path / "run")[1]["fault"] == "memory"
    with pytest.raises(hy.HopyardError, match=error):
        hy.resume(tmp_path / "run", failed=True, recipe=recipe, engine=engine)
    run = hy.resume(tmp_path / "run", failed=True, engine=hy.Inline())
    assert run.status == "completed" and digests(run) == clean(tmp_path)
    assert run.trials[1].model("last").batch_size == 16


def test_models_are_built_with_the_recipe_that_the_journal_names(tmp_path: Path) -> None:
    configs: list[dict[str, Any]] = [
        {"folder": str(tmp_path / str(number)), "times": 0, **config} for number, config in enumerate(CONFIGS)
    ]
    for config in configs[1:3]:
        config["times"] = 2
        Path(config["folder"]).mkdir()
    select(tmp_path / "run", starved, configs, engine=hy.Inline())
    with pytest.raises(ResourceError):
        hy.resume(tmp_path / "run", failed=True, recipe=mended, engine=Closed())
    run = hy.resume(tmp_path / "run", failed=True, recipe=smaller, engine=hy.Inline())
    assert [trial.model("last").batch_size for trial in run.trials] == [16, 8, 8, 16]
    assert replay(tmp_path / "run", engine=hy.Inline()).different == []
    run.trials[1].save(tmp_path / "saved")
    assert hy.load_model(tmp_path / "saved").model().batch_size == 8


def test_resume_says_what_it_was_asked_wrongly(tmp_path: Path) -> None:
    select(tmp_path / "run")
    with pytest.raises(SpecError, match="failed=True too"):
        hy.resume(tmp_path / "run", recipe=linear)
    with pytest.raises(SpecError, match=r"recipe must .* 3"):
        hy.resume(tmp_path / "run", failed=True, recipe=3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="True or False"):
        hy.resume(tmp_path / "run", failed="yes")  # type: ignore[arg-type]


def always_reset(config: dict[str, Any]) -> Linear:
    def ask() -> None:
        if not Path(config["there"]).exists():
            raise ConnectionRefusedError(111, "Connection refused")

    return linear_of(config, ask)


def test_a_run_whose_every_trial_failed_by_the_system_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"retries": 1}  # else it takes minutes
    monkeypatch.setattr("hopyard.driver.runs.request.grouping", lambda parallel: grouping(parallel) | few)
    there = tmp_path / "there"
    configs = [{"lr": 0.1, "there": str(there)}]
    with pytest.raises((RunFailed, hy.PreflightError), match="Connection refused"):
        select(tmp_path / "run", always_reset, configs)
    there.touch()
    run: Run = hy.resume(tmp_path / "run", failed=True)
    assert run.status == "completed"
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Failed)]


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[Path]:
    """A memory cgroup of its own; the test is skipped where this user may make none."""
    old = Path("/sys/fs/cgroup/memory")
    root = old if old.is_dir() else Path("/sys/fs/cgroup")
    group = root / f"hopyard-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if root == old else "memory.max")
        limit.write_text(str(size))
        with contextlib.suppress(OSError):
            (group / ("memory.memsw.limit_in_bytes" if root == old else "memory.swap.max")).write_text(
                str(size) if root == old else "0"
            )
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield group
    finally:
        end = time.monotonic() + 60
        while group.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


HUNGRY = """
if __name__ == "__main__":
    group, folder = Path(sys.argv[1]), Path(sys.argv[2])
    (group / "cgroup.procs").write_text(str(os.getpid()))

    class Hungry(Linear):
        def train(self, batch):
            if self.steps == 3 and first_time(str(folder / "once")):
                np.ones((4 << 30) // 8)
            return super().train(batch)

    def hungry(config):
        return Hungry(WIDTH, 2, lr=config["lr"], batch_size=16)

    run = select(folder / "run", hungry, engine=hy.Local(workers=2))
    print(run.status, *digests(run))
"""


def test_a_worker_that_the_kernel_really_killed_for_memory(tmp_path: Path) -> None:
    with limited_memory(1 << 30) as group:
        process = driver([str(script(tmp_path / "hungry.py", HUNGRY)), str(group), str(tmp_path)], tmp_path)
        out, errors = process.communicate(timeout=300)
    assert out.split() == ["completed", *clean(tmp_path)], errors
    (lost,) = [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]
    assert (lost.fault, "killed by SIGKILL" in lost.reason, "ran out" in lost.reason) == ("memory", True, True)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=1, devices=None)], ids=["inline", "local"])
def test_an_error_that_has_no_text_ends_its_own_trial(tmp_path: Path, engine: Any) -> None:
    def recipe(config: dict[str, Any]) -> Any:
        if config["lr"] == CONFIGS[1]["lr"]:
            raise Mute
        return linear(config)

    run = select(tmp_path / "run", recipe, CONFIGS[:2], engine=engine)
    assert [trial.status for trial in run.trials] == ["completed", "failed"]
    assert re.search(r"Mute: \(.*RuntimeError\)", run.trials[1].error)
    assert trials_of(tmp_path / "run")[1]["fault"] == "user"
