"""The values of `parallel=`: what is allowed, and what a run keeps of them."""

import msgspec
import pytest

import hopyard as hy
from hopyard.core.runs.events import Dispatch
from hopyard.parallel import any_workers, for_table, gang_of, grouping, parallel_of
from hopyard.spec import Gang, Outer, RunSpec
from jobs import dataset, digests, journal, linear


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hy.AllReduce(workers=0), r"AllReduce\(workers=\) must be an integer >= 1, got 0"),
        (lambda: hy.AllReduce(accumulate=0), r"AllReduce\(accumulate=\) must be an integer >= 1, got 0"),
        (lambda: hy.AllReduce(compress="int8"), r"AllReduce\(compress=\) must be None or \"fp16\", got 'int8'"),
        (lambda: hy.LocalSGD(every=0), r"LocalSGD\(every=\) must be an integer >= 1, got 0"),
        (lambda: hy.LocalSGD(outer="nesterov"), r"must be hy.Nesterov\(lr, momentum\) or None, got 'nesterov'"),
        (
            lambda: hy.LocalSGD(inner="drop"),
            r"LocalSGD\(inner=\) must be \"keep\", \"average\" or \"reset\", got 'drop'",
        ),
        (lambda: hy.LocalSGD(warmup=-1), r"LocalSGD\(warmup=\) must be an integer >= 0, got -1"),
        (lambda: hy.LocalSGD(compress="fp16"), r"must be None, \"bf16\" or \"int8\", got 'fp16'"),
        (lambda: hy.Nesterov(0, 0.9), r"Nesterov\(lr=\) must .* 0"),
        (lambda: hy.Nesterov(0.7, 1), r"Nesterov\(momentum=\) must .* 1"),
        (lambda: hy.Nesterov(True, 0.5), "lr=.* got True"),
        (lambda: hy.Hopper(gang=0), r"Hopper\(gang=\) must be an integer >= 1, got 0"),
        (lambda: hy.AllReduce(min_workers=0), r"AllReduce\(min_workers=\) must be an integer >= 1, got 0"),
        (lambda: hy.LocalSGD(2, min_workers=3), r"LocalSGD\(min_workers=\) must .*workers=2, got 3"),
    ],
)
def test_bad_values_are_refused_at_construction(make, words):
    with pytest.raises(hy.SpecError, match=words):
        make()


def spec_of(parallel, workers=3):
    return RunSpec(epochs=1, partitions=1, validation=0, gang=gang_of(parallel, workers), **grouping(parallel))


@pytest.mark.parametrize(
    "parallel",
    [
        hy.Hopper(),
        hy.Hopper("off"),
        hy.Hopper(3),
        hy.Hopper("off", gang=2),
        hy.AllReduce(2, 3, "fp16"),
        hy.AllReduce(3, min_workers=2),
        hy.LocalSGD(3, min_workers=1),
        hy.LocalSGD(2, 7, hy.Nesterov(0.7, 0.9), "average", "int8"),
        hy.LocalSGD(1, 7, warmup=3),
    ],
)
def test_a_run_knows_what_it_was_started_with(parallel):
    spec = spec_of(parallel)
    assert parallel_of(msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec)) == parallel


def test_a_gang_does_not_grow():
    with pytest.raises(hy.SpecError, match=r"min_workers .* 3,.* got 4"):
        gang_of(hy.AllReduce(min_workers=4), 3)


def test_a_gang_that_may_get_smaller_is_not_exact():
    with pytest.raises(hy.Inexact, match=r"exact=True.* min_workers=1"):
        hy.fit(linear, {}, dataset(), epochs=1, engine=hy.Local(2), parallel=hy.AllReduce(min_workers=1), exact=True)


def test_without_a_number_a_gang_has_all_workers():
    assert gang_of(hy.AllReduce(), 3) == Gang(3)
    assert gang_of(hy.LocalSGD(every=5, outer=hy.Nesterov(1, 0)), 4) == Gang(
        4, "parameters", every=5, outer=Outer(1.0, 0.0)
    )
    assert any_workers(hy.AllReduce()) and not any_workers(hy.AllReduce(2)) and not any_workers(None)


def test_a_hopper_has_no_gang():
    assert gang_of(hy.Hopper(), 3) is None
    assert spec_of(hy.Hopper(gang=2)).members == 2


def test_a_task_is_an_epoch_as_one_unit():
    spec = msgspec.structs.replace(spec_of(hy.TaskParallel()), partitions=6)
    assert for_table(hy.TaskParallel(), spec, 1 << 40).group == 6
    assert for_table(hy.Hopper(), spec, 1 << 28).copies is None
    assert for_table(hy.Hopper(), spec, 1 + (1 << 28)).copies == 1
    assert for_table(hy.Hopper(copies=2), spec, 0).copies == 2


def test_a_task_gives_the_bits_of_a_hopper(tmp_path):
    arguments = {"epochs": 2, "engine": hy.Inline()}
    first = hy.fit(
        linear, {"lr": 0.1}, dataset(), directory=tmp_path / "hopper", parallel=hy.Hopper("off"), **arguments
    )
    again = hy.fit(linear, {"lr": 0.1}, dataset(), directory=tmp_path / "task", parallel=hy.TaskParallel(), **arguments)
    assert digests(first) == digests(again)
    units = [line.unit for line in journal(tmp_path / "task") if isinstance(line, Dispatch)]
    assert [unit.partitions for unit in units if unit.kind == "train"] == [(0, 1, 2, 3)] * 2
    resume = {"engine": hy.Inline(), "directory": tmp_path / "task", "resume": True}
    assert hy.fit(linear, {"lr": 0.1}, dataset(), epochs=2, parallel=hy.TaskParallel(), **resume).status == "completed"
    with pytest.raises(hy.RunDirectoryError, match="with parallel=Hopper"):
        hy.fit(linear, {"lr": 0.1}, dataset(), epochs=2, parallel=hy.Hopper(2), **resume)
