"""One unit in one worker: sums, States, faults. No process, no driver."""

from __future__ import annotations

import copy
import errno
import functools
import math
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from hopyard.agent.runs import models
from hopyard.agent.runs import state_writer as keeping
from hopyard.agent.runs import worker as working
from hopyard.agent.runs.reported import CostCounter
from hopyard.agent.runs.state_writer import StateWriter
from hopyard.agent.runs.worker import Worker
from hopyard.core.messages import NoRoom
from hopyard.core.runs.events import Checked, Done, Durable, Failed
from hopyard.data.partitions.mapped import open_partition
from hopyard.data.partitions.supply import serve, supply
from hopyard.errors import ResourceError, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spec import ModelInfo, Ref, RunSpec, Unit
from hopyard.store.arena import Arena
from hopyard.store.guard import Guarded
from hopyard.store.states import LocalStore
from hopyard.store.tree import decode
from hopyard.training.build import Plan
from hopyard.training.steps import gather
from jobs import WIDTH, Counter, dataset, linear, troubled

CONFIG = {"lr": 0.1}


class Bench:
    """A worker whose messages go to a list."""

    def __init__(
        self, folder: Path, recipe: Any = linear, slot: int = 0, limit: int = 1 << 22, store: Any = None, **spec: Any
    ) -> None:
        asked: dict[str, Any] = {"epochs": 2, "partitions": 4, "validation": 4, "metric": "val_loss"} | spec
        self.store = store or LocalStore(folder / "states")
        self.arena = Arena(folder / "memory", slot, limit)
        self.told: list[Any] = []
        guarded = Guarded(lambda: self.store, "store:")
        self.checkpoints = StateWriter(slot, guarded, self.arena, self.told.append)
        self.plan = Plan(recipe, dataset().prepare(), RunSpec(**asked))
        self.worker = Worker(slot, self.plan, guarded, self.arena, self.checkpoints)

    def check(self) -> Checked:
        found = self.worker.check(0, CONFIG)
        assert isinstance(found, Checked)
        return found

    def train(self, lease: int, *partitions: int, start: Done | None = None, at: Ref | None = None, **more: Any) -> Any:
        where = start.memory_key if start is not None else ""
        unit = Unit(
            *(lease, more.get("trial", 0), "train", 0, partitions, at, where, more.get("digest", "")),
            model=more.get("model"),
        )
        answer, *self.beside = self.worker.run(unit, more.get("config", CONFIG))
        return answer

    def close(self) -> None:
        self.checkpoints.close()
        self.arena.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*arguments: Any, **more: Any) -> Bench:
        made.append(Bench(tmp_path, *arguments, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_units_over_several_partitions_are_the_units_over_each(bench: Callable[..., Bench]) -> None:
    one, many = bench(slot=0), bench(slot=1)
    whole = one.train(1, 0, 1, 2)
    first = many.train(1, 0)
    second = many.train(2, 1, start=first, at=Ref(0, 1, 1))
    third = many.train(3, 2, start=second, at=Ref(0, 2, 2))
    assert [part.sums for part in whole.parts] == [done.parts[0].sums for done in (first, second, third)]
    assert bytes(one.arena.view(whole.memory_key)) == bytes(many.arena.view(third.memory_key))
    assert whole.hop_bytes == third.hop_bytes == 0  # it had the State in memory


def test_batches_and_phases_are_counted_and_only_first_steps_may_compile(
    bench: Callable[..., Bench], counter: Counter
) -> None:
    """Partitions of 38 to 52 rows, batches of 16."""
    it = bench()
    first = it.train(1, 0)
    seen, counter.seen = counter.seen, []
    batches = [found for found in seen if isinstance(found, int)]
    assert len(batches) == -(-int(first.parts[0].sums["loss"][1]) // 16)
    assert set(batches) == {1}
    phases = [found for found in seen if isinstance(found, str)]
    assert phases[:5] == ["build", "fetch", "train", "compile", "train"]
    assert phases[-1] == "lay"
    it.train(2, 0, start=first, at=Ref(0, 1, 1))
    assert [found for found in counter.seen if isinstance(found, str)] == ["fetch", "train", "lay"]
    counter.seen.clear()
    it.worker.run(Unit(3, 0, "validate", 0, (0,), Ref(0, 2, 2)), CONFIG)
    assert [found for found in counter.seen if isinstance(found, str)][:3] == ["fetch", "validate", "compile"]


def test_rows_that_a_unit_fetched_before_it_failed_are_in_the_next_answer(
    bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has the rows; what is fetched once counts once."""
    it = bench(troubled, validation=4)
    manifest = it.plan.manifest
    sizes = [part.bytes for part in manifest.train]
    entry = copy.copy(manifest)
    monkeypatch.setattr("hopyard.data.partitions.mapped.default_root", lambda: tmp_path / "cache of the host")
    manifest.path = f"/nowhere/{manifest.key}"
    supply(manifest, lambda name: serve(entry, name))
    assert it.check().fetched_bytes == sizes[0] + manifest.validate[0].bytes
    assert it.train(1, 0, 1).fetched_bytes == sizes[1]
    assert isinstance(it.train(2, 2, config={**CONFIG, "at": 1, "do": "raise"}, trial=1), Failed)
    assert it.train(3, 0).fetched_bytes == sizes[2]
    assert it.train(4, 2).fetched_bytes == 0


def test_memory_growth_is_reported(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    it = bench()
    assert it.train(1, 0).peak_bytes == 0, "the process is the driver's"
    monkeypatch.setattr(it.worker, "_costs", CostCounter(it.plan.manifest, own_process=True))
    peaks = iter([1000, 1009, 1011, 1000])
    monkeypatch.setattr("hopyard.agent.runs.reported.peak_memory", lambda: next(peaks))
    assert [it.train(lease, 0).peak_bytes for lease in range(2, 6)] == [1000, 0, 1011, 0]


def test_another_slot_fetches_the_state(bench: Callable[..., Bench], counter: Counter) -> None:
    maker, taker = bench(slot=0), bench(slot=1)
    done = maker.train(1, 0)
    counter.seen.clear()
    taker.train(2, 1, start=done, at=Ref(0, 1, 1))
    phases = [found for found in counter.seen if isinstance(found, str)]
    assert phases[:4] == ["build", "fetch", "fetch", "train"]


def test_a_state_hops_through_shared_memory_and_through_the_store(bench: Callable[..., Bench]) -> None:
    maker, taker, late = bench(slot=0), bench(slot=1), bench(slot=2)
    done = maker.train(1, 0)
    made = []
    for other, where in ((taker, done), (late, None)):
        if where is None:
            maker.store.put(Ref(0, 1, 1), maker.arena.view(done.memory_key))
        after = other.train(2, 1, start=where, at=Ref(0, 1, 1))
        assert after.hop_bytes > 0
        made.append(bytes(other.arena.view(after.memory_key)))
    assert made[0] == made[1]


def test_a_state_that_is_nowhere_is_named_and_is_no_fault_of_the_trial(bench: Callable[..., Bench]) -> None:
    failed = bench().train(2, 1, at=Ref(0, 1, 1))
    assert (failed.fault, failed.missing) == ("store", Ref(0, 1, 1))
    assert failed.error == "State 0-1-1 of trial 0 is neither in shared memory nor stored"


def test_a_state_that_a_peer_does_not_give_is_asked_for_at_once(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a worker waited 5 s for it, which is less than a large State takes to be stored."""
    monkeypatch.setattr(keeping, "PAUSE", 1e9)  # nothing is stored meanwhile
    maker, taker = bench(slot=0), bench(slot=1)
    done = maker.train(1, 0)
    unit = Unit(2, 0, "train", 0, (1,), Ref(0, 1, 1), done.memory_key)
    (answer,) = taker.worker.run(unit, CONFIG, "tcp://127.0.0.1:9")
    assert isinstance(answer, Failed) and (answer.fault, answer.missing) == ("store", Ref(0, 1, 1))
    taker.store.put(Ref(0, 1, 1), maker.arena.view(done.memory_key))
    (answer,) = taker.worker.run(unit, CONFIG, "tcp://127.0.0.1:9")
    assert isinstance(answer, Done)


def test_a_maker_goes_on_with_its_own_state_when_its_folder_was_removed(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PAUSE", 1e9)  # nothing is stored meanwhile
    maker, taker = bench(slot=0), bench(slot=1)
    done = maker.train(1, 0)
    maker.worker._models.forget(0)
    shutil.rmtree(maker.arena.directory)
    assert taker.train(2, 1, start=done, at=Ref(0, 1, 1)).missing == Ref(0, 1, 1)
    after = maker.train(3, 1, start=done, at=Ref(0, 1, 1))
    assert (
        isinstance(after, Done) and after.memory_key == ""
    )  # nobody makes the folder again here: it is stored at once
    assert Ref(0, 2, 3) in maker.store.refs()


@pytest.mark.parametrize("error", [PermissionError(13, "ExpiredToken"), TimeoutError(), OSError(107, "not connected")])
def test_a_store_that_cannot_be_read_is_no_fault_of_the_recipe(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    it = bench()
    done = it.train(1, 0)
    it.store.put(Ref(0, 1, 7), it.arena.view(done.memory_key))
    it.worker._models.built.clear()

    def get(ref: Ref) -> bytearray:
        raise error

    monkeypatch.setattr(it.store, "get", get)
    failed = it.train(2, 1, at=Ref(0, 1, 7))
    assert (failed.fault, failed.missing) == ("store", None)
    assert "State 0-1-7 cannot be read" in failed.error


def test_a_stored_state_that_was_changed_is_not_used(bench: Callable[..., Bench]) -> None:
    it = bench()
    done = it.train(1, 0)
    data = bytearray(it.arena.view(done.memory_key))
    data[-1] ^= 1
    it.store.put(Ref(0, 1, 7), memoryview(data))
    it.worker._models.built.clear()
    failed = it.train(2, 1, at=Ref(0, 1, 7), digest="0" * 64)
    assert (failed.fault, failed.missing) == ("store", Ref(0, 1, 7))
    assert "State 0-1-7 is damaged" in failed.error


def test_an_epochs_end_is_stored_always(bench: Callable[..., Bench]) -> None:
    it = bench()
    done = it.train(1, 0, 1, 2, 3)
    it.checkpoints.close()
    (sealed,) = it.told
    assert sealed.ref == Ref(0, 4, 1)
    assert decode(it.store.get(sealed.ref))["steps"] == sum(-(-len_of // 16) for len_of in rows(it))
    assert done.memory_key


def rows(it: Bench) -> list[int]:
    return [part.rows for part in it.plan.manifest.train]


def test_validation_changes_nothing(bench: Callable[..., Bench]) -> None:
    it = bench()
    done = it.train(1, 0, 1, 2, 3)
    before = bytes(it.arena.view(done.memory_key))
    answer = it.worker.run(Unit(2, 0, "validate", 0, (0, 1), Ref(0, 4, 1), done.memory_key), CONFIG)[0]
    assert isinstance(answer, Done)
    assert [part.partition for part in answer.parts] == [0, 1]
    assert answer.memory_key == ""
    again = it.train(3, 0, at=Ref(0, 4, 1), start=done)
    assert isinstance(again, Done)
    assert bytes(it.arena.view(done.memory_key)) == before


def test_without_shared_memory_it_is_stored_at_once(bench: Callable[..., Bench]) -> None:
    it = bench(limit=0)
    done = it.train(1, 0)
    (sealed,) = it.beside
    assert isinstance(sealed, Durable)
    assert (done.memory_key, sealed.ref) == ("", Ref(0, 1, 1))
    assert it.store.refs() == {Ref(0, 1, 1)}


class Full(LocalStore):
    def put(self, ref: Ref, data: memoryview) -> None:
        raise ResourceError(f"no room for State {ref}")


def test_no_room_anywhere_is_no_fault_of_the_trial(bench: Callable[..., Bench], tmp_path: Path) -> None:
    it = bench(limit=0, store=Full(tmp_path / "full"))
    assert it.train(1, 0) == NoRoom(0, "no room for State 0-1-1", "store")


def test_the_check_reads_the_partitions_that_it_is_given(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other one, which would be brought to this host."""
    seen = set()

    def opened(manifest: Any, kind: Any, partition: int) -> Any:
        seen.add((kind, partition))
        return open_partition(manifest, kind, partition)

    monkeypatch.setattr(working, "open_partition", opened)
    it = bench()
    it.worker.check(0, CONFIG, (3, 2))
    assert seen == {("train", 3), ("validate", 2)}


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ResourceError("no room for the data cache in /cache"), "no room for the data cache in /cache"),
        (OSError(errno.EIO, "Input/output error"), "cannot read or keep train partition 0: [Errno 5]"),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot read or keep train partition 0: [Errno 28]"),
    ],
)
def test_rows_that_this_host_cannot_keep_or_read_are_its_own_fault(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, error: Exception, what: str
) -> None:
    def opened(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(working, "open_partition", opened)
    it = bench()
    answer = it.train(1, 0)
    assert isinstance(answer, NoRoom) and answer.what == "rows"
    assert answer.error.startswith(f"host {socket.gethostname()}") and what in answer.error
    assert it.worker.check(0, CONFIG) == answer


def test_rows_that_cannot_be_opened_at_present_are_tried_again(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: Any) -> Any:
        try:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/nfs/rows.npy")
        except OSError as error:
            raise hy.DataError("train partition 0 is damaged") from error

    monkeypatch.setattr(working, "open_partition", opened)
    it = bench()
    failed = it.train(1, 0)
    assert failed.fault == "system" and "cannot read train partition 0 at present" in failed.error
    checked = it.worker.check(0, CONFIG)
    assert isinstance(checked, Checked) and checked.fault == "system"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ValueError("x"), "user"),
        (hy.DataError("x"), "data"),
        (MemoryError("x"), "memory"),
        (ConnectionError("x"), "system"),
        (PermissionError("x"), "user"),
        (hy.SpecError("x"), "user"),
    ],
)
def test_whose_fault_it_was(bench: Callable[..., Bench], error: Exception, fault: str) -> None:
    class Bad(Linear):
        def train(self, batch: Any) -> Any:
            raise error

    failed = bench(lambda config: Bad(WIDTH, 2, lr=0.1, batch_size=16)).train(1, 0)
    assert isinstance(failed, Failed)
    assert failed.fault == fault
    assert "x" in failed.error
    assert type(error).__name__ in failed.trace


def test_a_loss_that_is_not_finite_ends_the_unit(bench: Callable[..., Bench]) -> None:
    failed = bench(troubled).train(1, 2, config={**CONFIG, "at": 1, "do": "nan"})
    assert failed.fault == "user"
    assert "nan in trial 0, epoch 1, partition 2" in failed.error
    assert not failed.trace  # bug: reports had a traceback of our own lines for each such trial


def test_memory_of_a_failed_unit_is_not_used(bench: Callable[..., Bench], tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    it, plain = bench(troubled), bench(slot=1)
    failed = it.train(1, 0, config={**CONFIG, "at": 2, "do": "raise", "once": once})
    assert isinstance(failed, Failed)
    again = it.train(2, 0, config={**CONFIG, "at": 2, "do": "raise", "once": once})
    assert again.parts[0].sums == plain.train(1, 0).parts[0].sums


def test_no_more_models_stay_built_than_allowed(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "BUILT", 2)
    it = bench()
    dones = [it.train(trial + 1, trial, trial=trial) for trial in range(4)]
    assert list(it.worker._models.built) == ["trial 2", "trial 3"]
    after = it.train(9, 1, trial=0, start=dones[0], at=Ref(0, 1, 1))
    assert after.hop_bytes > 0
    assert list(it.worker._models.built) == ["trial 3", "trial 0"]
    monkeypatch.setattr(models, "BUILT_BYTES", 1)
    it.train(10, 1, trial=2, start=dones[2], at=Ref(2, 1, 3))
    assert list(it.worker._models.built) == ["trial 2"]


def frozen(config: Any, seed: int = 0) -> Any:
    """A model with 288 frozen bytes, other ones for another seed, below a layer that is trained."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    first = torch.nn.Linear(WIDTH, 12, bias=False).requires_grad_(False)
    first.weight.data.normal_(generator=generator)
    return torch_model(torch.nn.Sequential(first, torch.nn.Linear(12, 2)))


def test_the_limit_of_built_models_counts_what_is_frozen(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = bench(frozen)
    done = it.train(1, 0)
    state_bytes = len(it.arena.view(done.memory_key))
    for limit, count in ((2 * (state_bytes + 288), 2), (2 * (state_bytes + 288) - 1, 1)):
        monkeypatch.setattr(models, "BUILT_BYTES", limit)
        for trial in (2, 3):
            it.train(limit + trial, 0, trial=trial)
        assert len(it.worker._models.built) == count


def test_a_worker_with_another_base_ends_the_trial(bench: Callable[..., Bench]) -> None:
    one, other = bench(frozen), bench(functools.partial(frozen, seed=1), slot=1)
    done = one.train(1, 0)
    same = bench(frozen, slot=2).train(2, 1, start=done, at=Ref(0, 1, 1))
    assert isinstance(same, Done) and same.hop_bytes == len(one.arena.view(done.memory_key))
    failed = other.train(3, 1, start=done, at=Ref(0, 1, 1))
    assert isinstance(failed, Failed) and failed.fault == "user"
    assert failed.error.startswith("the frozen parameters of the State (digest ")


def test_preflight_says_how_many_bytes_hop_and_stay(bench: Callable[..., Bench]) -> None:
    checked, plain = bench(frozen).check(), bench(slot=1).check()
    assert (checked.faults, checked.frozen_bytes) == ((), 288)
    assert 0 < checked.hop_bytes < 4096
    assert (plain.hop_bytes, plain.frozen_bytes) == (0, 0)


def test_preflight_names_what_is_frozen_and_changes_all_the_same(bench: Callable[..., Bench]) -> None:
    def drift(module: Any, inputs: Any) -> None:
        module[0].weight.data.mul_(1.01)

    def drifting(config: Any) -> Any:
        made = frozen(config)
        made.module.register_forward_pre_hook(drift)
        return made

    (fault,) = bench(drifting).check().faults
    assert "changes frozen parameter '0.weight', so" in fault


def test_preflight_finds_the_metric_that_nobody_reports(bench: Callable[..., Bench]) -> None:
    it = bench(metric="val_auc")
    checked = it.check()
    reported = "the recipe reports 'loss', 'accuracy', 'val_loss', 'val_accuracy'; give one of these"
    assert checked.faults == (f"metric = 'val_auc': {reported}",)
    (fault,) = bench(slot=1, metric="auc", validation=0).check().faults
    assert "no validation data" in fault


def test_preflight_says_what_the_recipe_raised(bench: Callable[..., Bench]) -> None:
    checked = bench(troubled).worker.check(1, {**CONFIG, "do": "build"})
    assert isinstance(checked, Checked)
    (fault,) = checked.faults
    assert fault.startswith("RuntimeError: no such optimizer (jobs.py, line ") and fault.endswith(", in troubled)")
    assert checked.trace.startswith("Traceback") and 'raise RuntimeError("no such optimizer")' in checked.trace


def test_preflight_finds_a_state_that_cannot_be_stored(bench: Callable[..., Bench]) -> None:
    class Odd(Linear):
        def state(self) -> Any:
            return {**super().state(), "stream": object()}

    (fault,) = bench(lambda config: Odd(WIDTH, 2, lr=0.1, batch_size=16)).check().faults
    assert "stream" in fault


def outside(module: Any) -> Any:
    """A recipe that trains what was built before it was called."""
    return lambda config: torch_model(module)


def cached(config: Any) -> Any:
    return torch_model(cached_net())


@functools.cache
def cached_net() -> Any:
    import torch

    return torch.nn.Linear(WIDTH, 2)


def below_a_new_head(trunk: Any) -> Any:
    import torch

    return lambda config: torch_model(torch.nn.Sequential(trunk, torch.nn.Linear(2, 2)))


def torch_model(module: Any) -> Any:
    import torch

    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    return hy.torch.Model(module, optimizer, torch.nn.functional.cross_entropy, batch_size=16)


def built_outside() -> dict[str, Any]:
    import torch

    linear, memory = torch.nn.Linear(WIDTH, 2), torch.zeros(2, WIDTH)
    norm = torch.nn.BatchNorm1d(WIDTH).requires_grad_(False)

    def of_the_same_memory(config: Any) -> Any:
        module = torch.nn.Linear(WIDTH, 2)
        module.weight = torch.nn.Parameter(memory)
        return torch_model(module)

    teacher = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def declared(config: Any) -> Any:
        module = torch.nn.Sequential(teacher, torch.nn.Linear(WIDTH, 2))
        optimizer = torch.optim.SGD(module[1].parameters(), lr=0.1)
        return hy.torch.Model(module, optimizer, torch.nn.functional.cross_entropy, batch_size=16, state=["0.*"])

    model = torch_model(torch.nn.Linear(WIDTH, 2))
    own = Linear(WIDTH, 2, lr=0.1, batch_size=16)
    return {
        "a net": outside(linear),
        "a part of one": below_a_new_head(torch.nn.Linear(WIDTH, 2)),
        "statistics of batches": lambda config: torch_model(torch.nn.Sequential(norm, torch.nn.Linear(WIDTH, 2))),
        "a model": lambda config: model,
        "a step of one's own": lambda config: own,
        "a cache": cached,
        "memory": of_the_same_memory,
        "what state= names": declared,
    }


def built_inside() -> dict[str, Any]:
    import torch

    net, frozen = torch.nn.Linear(WIDTH, 2), torch.nn.Linear(WIDTH, 2).requires_grad_(False)
    weights = net.state_dict()

    def pretrained(config: Any) -> Any:
        module = torch.nn.Linear(WIDTH, 2)
        module.load_state_dict(weights)
        return torch_model(module)

    kept: list[Any] = []

    def remembered(config: Any) -> Any:
        kept.append(torch.nn.Linear(WIDTH, 2))
        return torch_model(kept[-1])

    return {
        "weights that are loaded": pretrained,
        "a copy": lambda config: torch_model(copy.deepcopy(net)),
        "a net that somebody keeps": remembered,
        "a part that does not train": below_a_new_head(frozen),
    }


@pytest.mark.parametrize("name", built_outside())
def test_a_net_that_was_built_outside_of_the_recipe_is_refused_in_preflight(
    bench: Callable[..., Bench], name: str
) -> None:
    """Else each trial would go on with the weights of the one before it in the same worker."""
    it = bench(built_outside()[name])
    (fault,) = it.check().faults
    assert "same parameters" in fault
    assert "copy.deepcopy(net)" in fault


def test_a_worker_that_has_checked_nothing_finds_it_when_it_builds_the_second_model(
    bench: Callable[..., Bench],
) -> None:
    it = bench(built_outside()["a net"])
    assert isinstance(it.train(1, 0), Done)
    second = it.train(2, 0, trial=1)
    assert isinstance(second, Failed)
    assert second.fault == "user" and "same parameters" in second.error


@pytest.mark.parametrize("name", built_inside())
def test_nets_that_are_new_in_each_trial_pass(bench: Callable[..., Bench], name: str) -> None:
    it = bench(built_inside()[name])
    checked = it.worker.check(0, CONFIG)
    assert isinstance(checked, Checked) and checked.faults == ()
    assert all(isinstance(it.train(trial + 1, 0, trial=trial), Done) for trial in range(3))


def test_a_recipe_is_called_once_in_preflight_where_its_net_is_gone_by_the_end(bench: Callable[..., Bench]) -> None:
    calls = []

    def recipe(config: Any) -> Any:
        calls.append(config)
        return built_inside()["a copy"](config)

    assert bench(recipe).worker.check(0, CONFIG).faults == ()  # type: ignore[union-attr]
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["val_hits", "last_hits", "seconds"])
def test_preflight_refuses_names_that_stand_for_something_else(bench: Callable[..., Bench], name: str) -> None:
    """`val_hits` of the recipe would be a value in training, and a run with metric="val_hits" would select by it."""

    class Named(Linear):
        def evaluate(self, batch: Any) -> Any:
            return {**super().evaluate(batch), name: (1.0, 1.0)}

    (fault,) = bench(lambda config: Named(WIDTH, 2, lr=0.1, batch_size=16)).check().faults
    assert f"metric named '{name}'" in fault


def test_preflight_names_the_attribute_that_a_step_changes(bench: Callable[..., Bench]) -> None:
    import torch

    class Warming(torch.nn.Linear):
        steps = 0

        def forward(self, inputs: Any) -> Any:
            self.steps += 1
            return super().forward(inputs) * self.steps

    it = bench(lambda config: torch_model(torch.nn.Sequential(Warming(WIDTH, 2))))
    checked = it.worker.check(0, CONFIG)
    assert isinstance(checked, Checked)
    (note,) = checked.notes
    assert "the module's attribute '0.steps'" in note and "make it a buffer (register_buffer)" in note


def test_labels_out_of_range_are_a_fault_of_the_data(bench: Callable[..., Bench]) -> None:
    failed = bench(lambda config: Linear(WIDTH, 1 + 1, lr=0.1, batch_size=16)).train(1, 0)
    assert isinstance(failed, Done)
    few = Worker(1, *few_classes(bench(slot=1)))
    answer = few.run(Unit(1, 0, "train", 0, (0,), None), CONFIG)[0]
    assert isinstance(answer, Failed)
    assert (answer.fault, "0 to 1 are allowed" in answer.error) == ("data", True)


def few_classes(it: Bench) -> Any:
    x = np.zeros((40, WIDTH), np.float32)
    manifest = hy.Dataset.numpy(x, np.arange(40) % 3, partitions=4).prepare()
    return Plan(linear, manifest, it.plan.spec), it.store, it.arena, it.checkpoints


def test_preflight_sees_the_metrics_of_a_first_batch_that_weighs_nothing(bench: Callable[..., Bench]) -> None:
    import torch

    def net(config: Any) -> Any:
        module = torch.nn.Linear(WIDTH, 2)
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        metrics = {"accuracy": hy.torch.accuracy}
        return hy.torch.Model(module, torch.optim.SGD(module.parameters(), lr=0.1), loss, metrics, batch_size=2)

    weights = np.zeros(40)
    weights[-8:] = 1
    data = hy.Dataset.numpy(
        np.zeros((40, WIDTH), np.float32), np.arange(40) % 2, weight=weights, partitions=2, validation=0.5
    )
    it = bench(metric="val_accuracy", partitions=2, validation=2)
    worker = Worker(1, Plan(net, data.prepare(), it.plan.spec), it.store, it.arena, it.checkpoints)
    checked = worker.check(0, {})
    assert isinstance(checked, Checked)
    assert (checked.faults, checked.names) == ((), ("loss", "accuracy", "val_loss", "val_accuracy"))


def test_sums_are_exact_and_may_be_tensors_and_arrays() -> None:
    import torch

    values = [1e16, 1.0, -1e16, 1.0]
    assert gather({"loss": (v, 1)} for v in values) == {"loss": (2.0, 4.0)}
    assert gather([{"loss": (torch.tensor(1.5), 2)}, {"loss": (torch.tensor([2.5]), 3)}]) == {"loss": (4.0, 5.0)}
    arrays = [{"bins": (np.array([1, 2]), 1)}, {"bins": (np.array([3, 4]), 1)}]
    assert gather(arrays) == {"bins": ([4.0, 6.0], 2.0)}
    assert gather([{"bins": ([1, 2], 1)}, {"bins": (torch.tensor([1.0, 2.0]), 1)}]) == {"bins": ([2.0, 4.0], 2.0)}
    assert math.isnan(gather([{"loss": (math.nan, 1)}, {"loss": (1.0, 1)}])["loss"][0])  # type: ignore[arg-type]
    assert gather([]) == {}
    (name,) = gather([{np.str_("loss"): (np.float32(1), np.int64(2))}])  # type: ignore[dict-item]
    assert type(name) is str, "else no journal has it"
    with pytest.raises(ValueError, match="argument 2"):
        gather([{"bins": ([1, 2], 1)}, {"bins": ([1, 2, 3], 1)}])


def test_a_reported_tensor_does_not_hold_on_to_its_graph() -> None:
    import torch

    weight = torch.ones(2, requires_grad=True)
    assert gather([{"loss": ((weight * 2).sum(), 2)}]) == {"loss": (4.0, 2.0)}  # else torch warns, and memory grows


@pytest.mark.parametrize("kind", ["list", "numpy", "torch"])
def test_an_array_that_a_model_fills_anew_in_each_batch_is_added_up(kind: str) -> None:
    """Bug: the last batch counted as often as there were batches."""
    import torch

    bins: Any = {"list": [0.0, 0.0], "numpy": np.zeros(2), "torch": torch.zeros(2)}[kind]

    def batches() -> Iterator[dict[str, Any]]:
        for number in (1.0, 2.0, 3.0):
            bins[0], bins[1] = number, 10 * number
            yield {"bins": (bins, 1)}

    assert gather(batches()) == {"bins": ([6.0, 60.0], 3.0)}


def test_an_array_of_millions_is_refused_at_its_first_batch() -> None:
    """Bug: its numbers were added one by one, for minutes, without a word."""
    batches = iter([{"big": (np.ones(2_000_000), 4.0)}])
    with pytest.raises(SpecError, match="metric 'big' is an array of 2,000,000 numbers"):
        gather(batches)


class Alike(Linear):
    sharing_key = "alike"


def test_a_recipe_is_not_called_where_a_model_like_its_own_is_built(bench: Callable[..., Bench]) -> None:
    calls: list[float] = []

    def recipe(config: dict[str, Any]) -> Any:
        calls.append(config["lr"])
        return Alike(WIDTH, 2, lr=0.1, batch_size=config["rows"])

    maker, taker = bench(recipe, slot=0), bench(recipe, slot=1)
    small: dict[str, Any] = {"config": {"lr": 0.1, "rows": 8}}
    first = maker.train(1, 0, **small)
    assert first.model == ModelInfo("alike", 8)
    hop = small | {"start": first, "at": Ref(0, 1, 1)}
    assert maker.train(2, 1, **hop, model=first.model).model is None
    assert taker.train(3, 0, trial=1, config={"lr": 0.2, "rows": 16}).model == ModelInfo("alike", 16)
    hopped = taker.train(4, 1, **hop, model=first.model)
    assert calls == [0.1, 0.2] and hopped.model is None
    again = bench(recipe, slot=2).train(5, 1, **hop)
    assert calls == [0.1, 0.2, 0.1] and again.model == first.model
    assert again.parts[0].sums == hopped.parts[0].sums


# ---------------------------------------------------------------- what the user is told


def test_warnings_come_with_the_answer_once_for_each_trial(bench: Callable[..., Bench]) -> None:
    class Odd(Linear):
        def train(self, batch: Any) -> Any:
            warnings.warn("odd shapes", UserWarning, stacklevel=1)
            return super().train(batch)

    it = bench(lambda config: Odd(WIDTH, 2, lr=0.1, batch_size=16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("default", "odd shapes")
        warnings.showwarning = lambda *arguments: None
        checked = it.worker.check(0, CONFIG)
        first = it.train(1, 0)
        other = it.train(2, 0, trial=1)
    assert isinstance(checked, Checked)
    (told,) = checked.warnings
    assert told.text == "UserWarning: odd shapes" and ", in train" in told.place
    assert first.warnings == ()
    assert other.warnings == (told,)


def test_the_last_error_is_kept_until_something_ends_well(bench: Callable[..., Bench]) -> None:
    it = bench(troubled)
    it.worker.check(0, {**CONFIG, "do": "build"})
    assert str(it.worker.error) == "no such optimizer"
    it.train(1, 0, config={**CONFIG, "at": 1, "do": "raise"})
    assert str(it.worker.error) == "the moon is in the wrong house"
    it.train(2, 0)
    assert it.worker.error is None


def test_a_recipe_that_asks_for_the_epochs_is_noted(bench: Callable[..., Bench]) -> None:
    def asks(config: Any, ctx: Any) -> Any:
        return linear({"lr": 0.1 / ctx.epochs})

    def ignores(config: Any, ctx: Any) -> Any:
        return linear({"lr": 0.1 / ctx.batches(16)})

    checked = bench(asks).worker.check(0, CONFIG)
    assert isinstance(checked, Checked) and checked.model == ModelInfo("", 16, True)
    assert bench(asks, slot=1).train(1, 0).model == ModelInfo("", 16, True)
    assert bench(ignores, slot=2).train(1, 0).model == ModelInfo("", 16, False)
    assert bench(slot=3).train(1, 0).model == ModelInfo("", 16, False)


def test_a_model_that_asks_for_the_epochs_only_later_is_noted_too(bench: Callable[..., Bench]) -> None:
    class Late(Linear):
        context: hy.RecipeContext

        def train(self, batch: Any) -> Any:
            if self.steps > 5:
                assert self.context.epochs == 2
            return super().train(batch)

    def recipe(config: Any, ctx: Any) -> Any:
        model = Late(WIDTH, 2, lr=0.1, batch_size=16)
        model.context = ctx
        return model

    it = bench(recipe)
    first = it.train(1, 0)
    assert first.model == ModelInfo("", 16, False)
    second = it.train(2, 1, 2, start=first, at=Ref(0, 1, 1), model=first.model)
    assert second.model == ModelInfo("", 16, True)
    other = bench(recipe, slot=1)
    assert other.train(3, 3, start=second, at=Ref(0, 3, 2), model=second.model).model is None
