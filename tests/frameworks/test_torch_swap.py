"""The claim that the house stands on: States that are swapped into modules that are already built, and dirtied by other
trials, in this process and in another one, train to the same bits as a model that was never swapped."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch

from hopyard.frameworks.tree import capture, restore
from hopyard.store.tree import decode, digest, encode
from swap_cases import CASES, EPOCHS, Case, P, build, dirty, never_swapped, serve, step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,))
    process.start()
    there.close()  # so that its end is seen here
    try:
        yield here
    finally:
        here.send(None)
        process.join(20)
        process.kill()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_swapped_training_is_bitwise_equal(case: Case, elsewhere: Connection) -> None:
    data, wanted_sums, wanted = never_swapped(case)
    models = [build(case, 99), build(case, 5)]
    for number in range(P * EPOCHS):
        if number % 3 == 2:
            elsewhere.send((case, number, data))
            sums, data = elsewhere.recv()
        else:
            model = models[number % 2]
            dirty(model, number)
            restore(model, decode(data))
            assert bytes(encode(capture(model))) == data
            sums = step(model, 0, number)
            data = bytes(encode(capture(model)))
        assert sums == wanted_sums[number]
    assert digest(data) == digest(wanted)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("case", [("tied", "adam", "none"), ("mlp", "sgd", "lambda")], ids="-".join)
def test_the_first_state_restores_exactly_into_a_trained_model(case: Case) -> None:
    data, _, wanted = never_swapped(case)
    model = build(case, 99)
    dirty(model, 1)
    restore(model, decode(data))
    assert not model.optimizer.state
    for number in range(P * EPOCHS):
        step(model, 0, number)
    assert bytes(encode(capture(model))) == wanted


def test_tied_and_strided_tensors_stay_so() -> None:
    tied, strided = build(("tied", "adam", "none"), 0), build(("transposed", "adam", "none"), 0)
    for model in (tied, strided):
        data = encode(capture(model))
        dirty(model, 0)
        restore(model, decode(data))
    assert tied.module.second.weight is tied.module.first.weight  # type: ignore[union-attr]
    weight = strided.module[0].weight  # type: ignore[index]
    assert isinstance(weight, torch.Tensor) and weight.stride() == (1, 24)
