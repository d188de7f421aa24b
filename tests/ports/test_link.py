"""What every link must do, over a worker in this process (InProcess) and one in a process of its own (Router)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hopyard as hy
from hopyard.core.messages import Examine, Ready, Setup, Unfit, Up, Work
from hopyard.core.runs.events import Checked, Done, Durable, Failed
from hopyard.driver.commit import Gone, Link
from hopyard.driver.in_process import InProcess
from hopyard.driver.pickling import dump
from hopyard.driver.router import Router
from hopyard.spec import Ref, RunSpec, Unit
from hopyard.store.arena import memory_root
from hopyard.store.states import LocalStore
from hopyard.store.tree import digest
from hopyard.system.scratch import Folder
from jobs import dataset, linear, troubled

SPEC = RunSpec(epochs=2, partitions=4, validation=4, metric="val_loss")
CONFIG = {"lr": 0.1}


class Host:
    """One link and what it needs."""

    def __init__(self, kind: str, folder: Path, recipe: Any = linear, pickle: bytes = b"") -> None:
        manifest = dataset().prepare()
        self.manifest = manifest
        root, run = memory_root(folder), secrets.token_hex(4)
        self.folder = Folder(root, run)
        self.store = LocalStore(folder / "states")

        def setup(device: str) -> Setup:
            shipped = pickle or dump(recipe, "recipe")
            store = str(folder / "states")
            return Setup(SPEC, shipped, msgspec.json.encode(manifest), store, str(root), run, 1, device)

        self.link: Link
        if kind == "direct":
            self.link = InProcess(setup)
        else:
            engine = hy.Local(workers=1, devices=None)
            self.link = Router(engine, setup, lambda slot: folder / f"{slot}.log", 15.0)
        self.heard: list[Up | Gone] = []
        self.open = True

    def wait(self, kind: Any, seconds: float = 60.0) -> Any:
        """The next message of this kind; others are kept in `heard`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for message in list(self.heard):
                if isinstance(message, kind):
                    self.heard.remove(message)
                    return message
            self.heard += self.link.receive(0.5)
        raise AssertionError(f"no {kind} in {self.heard}")

    def close(self) -> None:
        if self.open:
            self.open = False
            self.link.close()
            self.folder.close()


@pytest.fixture(params=["direct", "router"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(*arguments: Any, **more: Any) -> Host:
        made.append(Host(request.param, tmp_path, *arguments, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def unit(lease: int, start: Ref | None = None, memory_key: str = "", **more: Any) -> Unit:
    return Unit(lease, 0, "train", 0, (0,) if start is None else (1,), start, memory_key, **more)


@pytest.mark.slow
def test_an_agent_comes_up_checks_works_and_stores(host: Callable[..., Host]) -> None:
    it = host()
    it.link.start(5)
    ready = it.wait(Ready)
    assert ready.slot == 5
    assert ready.fingerprint["numpy"]
    it.link.send(5, Examine(0, CONFIG))
    checked = it.wait(Checked)
    assert (checked.faults, set(checked.names)) == ((), {"loss", "accuracy", "val_loss", "val_accuracy"})
    it.link.send(5, Work(unit(1), CONFIG))
    done = it.wait(Done)
    assert (done.slot, done.lease, [part.partition for part in done.parts]) == (5, 1, [0])
    assert done.parts[0].sums["loss"][1] == it.manifest.train[0].rows
    sealed = it.wait(Durable)
    assert sealed.ref == Ref(0, 1, 1)
    assert sealed.digest == digest(it.store.get(sealed.ref))
    it.link.send(5, Work(unit(2, sealed.ref, done.memory_key, digest=sealed.digest), CONFIG, ("5-aaaaaaaa-0",)))
    assert it.wait(Done).lease == 2
    it.link.send(5, Work(Unit(3, 0, "validate", 0, (0, 1, 2, 3), Ref(0, 2, 2)), CONFIG))
    assert len(it.wait(Done).parts) == 4
    it.close()
    assert not it.folder.path.exists()


@pytest.mark.slow
def test_an_error_of_a_recipe_comes_back_as_failed(host: Callable[..., Host]) -> None:
    it = host(troubled)
    it.link.start(0)
    it.wait(Ready)
    it.link.send(0, Work(unit(1), {**CONFIG, "at": 1, "do": "raise"}))
    failed = it.wait(Failed)
    assert (failed.lease, failed.fault) == (1, "user")
    assert "RuntimeError: the moon is in the wrong house (jobs.py, line " in failed.error
    assert "Traceback" in failed.trace
    it.link.send(0, Work(unit(2), CONFIG))
    assert it.wait(Done).lease == 2


@pytest.mark.slow
def test_a_recipe_that_does_not_load_is_unfit(host: Callable[..., Host]) -> None:
    it = host(pickle=b"cnowhere_to_be_found\nrecipe\n.")
    it.link.start(0)
    words = "the recipe does not load there: ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert it.wait(Unfit).error == words


@pytest.mark.slow
def test_messages_of_an_ended_agent_are_ignored(host: Callable[..., Host]) -> None:
    it = host()
    it.link.start(0)
    it.wait(Ready)
    it.link.end(0)
    it.link.send(0, Work(unit(1), CONFIG))
    assert it.link.receive(0.2) == []


def test_receive_comes_back_where_nobody_says_anything(host: Callable[..., Host]) -> None:
    it = host()
    assert it.link.receive(0.05) == []
    assert it.link.receive(0.0) == []
