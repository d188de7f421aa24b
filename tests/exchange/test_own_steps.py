"""A Trainable of one's own in a gang: it averages its gradients by itself, in NumPy."""

import numpy as np
import pytest

from gang_threads import exchanges, partitions, together
from hopyard.agent.runs.members import Share, gathered
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.errors import SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spec import Gang


class Shared(Linear):
    exchange = None

    def set_exchange(self, exchange):
        self.exchange = exchange

    def train(self, batch):
        inputs, error, sums = self._pass(batch)
        gradients = [inputs.T @ error, error.sum(0)]
        if self.exchange is not None:
            self.exchange.mean(gradients, batch.rows)
        self.weights -= self.lr * gradients[0]
        self.bias -= self.lr * gradients[1]
        return sums


@pytest.mark.parametrize("size", [2, 3])
def test_own_steps_equal_one_worker_with_the_whole_batch(size):
    (columns,) = partitions([23])

    def trained(exchange):
        model = Shared(5, 3, 0.5, 8)
        model.set_exchange(exchange)
        member = (0, 1) if exchange is None else (exchange.rank, exchange.size)
        for batch in PartitionLoader(columns, 8, 1, None, member):
            model.train(batch)
        return model.weights

    alone = trained(None)
    for weights in together(trained, exchanges(Gang(size))):
        np.testing.assert_allclose(weights, alone, rtol=1e-9)


def test_numbers_without_fractions_have_no_mean():
    (exchange, _) = exchanges(Gang(2))
    with pytest.raises(SpecError, match="ndarray of int64"):
        exchange.mean([np.zeros(3, np.int64)], 1.0)


def test_arrays_that_cannot_be_changed_are_refused():
    (exchange, _) = exchanges(Gang(2))
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(SpecError, match="read-only: give a copy"):
        exchange.mean([array], 1.0)


@pytest.mark.parametrize("array", [np.zeros(3, ">f4"), np.zeros(3, np.longdouble)], ids=["big-endian", "long double"])
def test_numbers_that_torch_does_not_have_are_refused(array):
    (exchange, _) = exchanges(Gang(2))
    with pytest.raises(SpecError, match="an exchange takes"):
        exchange.mean([array], 1.0)


@pytest.mark.parametrize("compress", [None, "fp16", "bf16", "int8"])
def test_rows_alone_are_added_up(compress):
    def work(exchange):
        return exchange.mean([], 2.0 + exchange.rank)

    gang = Gang(3) if compress is None else Gang(3, compress=compress)
    assert together(work, exchanges(gang)) == [9.0, 9.0, 9.0]


@pytest.mark.parametrize("operation", ["mean", "average", "broadcast"])
def test_arrays_may_have_any_strides(operation):
    """Reversed, of every other number, transposed, or a field of a record; in place, and nothing beside them."""

    def work(exchange):
        memory = np.full((6, 40_000), 10.0 * exchange.rank)
        memory[:] += np.arange(6)[:, None]
        record = np.zeros(4, [("small", "i1"), ("x", "f8")])
        record["x"] = exchange.rank
        arrays = [memory[::-2], memory[::2].T, record["x"]]
        getattr(exchange, operation)(arrays, *([] if operation == "broadcast" else [1.0]))
        return memory, record

    for memory, record in together(work, exchanges(Gang(2))):
        middle = 0.0 if operation == "broadcast" else 5.0
        np.testing.assert_array_equal(memory, np.arange(6)[:, None] + np.full((6, 40_000), middle))
        np.testing.assert_array_equal(record["x"], middle / 10)
        assert not record["small"].any()


@pytest.mark.parametrize("rows", [-1, float("nan"), float("inf"), "8", None])
@pytest.mark.parametrize("operation", ["mean", "average"])
def test_rows_are_a_number(rows, operation):
    (exchange, _) = exchanges(Gang(2))
    with pytest.raises(SpecError, match="rows must be"):
        getattr(exchange, operation)([np.zeros(3)], rows)


@pytest.mark.parametrize("other", [np.zeros(4), np.zeros(3, np.float32), None], ids=["size", "dtype", "count"])
def test_members_with_different_arrays_are_refused(other):
    """They would wait for each other, or end each other's process."""

    def work(exchange):
        exchange.mean([np.zeros(3)], 1.0)
        arrays = (
            [np.zeros(300_000), np.zeros(3)]
            if exchange.rank
            else [np.zeros(300_000), *([] if other is None else [other])]
        )
        with pytest.raises(SpecError, match=r"equal arrays in equal order.* at member 1"):
            exchange.mean(arrays, 1.0)
        return exchange.mean([np.zeros(3)], 1.0)

    assert together(work, exchanges(Gang(2))) == [2.0, 2.0]


class Forgets(Shared):
    def train(self, batch):
        exchange, self.exchange = self.exchange, None
        sums = super().train(batch)
        self.exchange = exchange
        return sums


def test_a_step_without_an_exchange_is_refused():
    def work(exchange):
        model = Forgets(5, 3, 0.5, 8)
        model.set_exchange(exchange)
        with pytest.raises(SpecError, match=r"never called exchange\.mean"):
            gathered(exchange, model, Share([]))
        exchange.mean([np.zeros(3)], 1.0)
        return gathered(exchange, model, Share([]))

    assert together(work, exchanges(Gang(2))) == [([], [], ((0, 0),)), ([], [], ())]


def test_averages_are_never_rounded():
    """Bug: a mean of squares became negative where another number of the array was large."""

    def work(exchange):
        array = np.array([0.0, 0.0095]) if exchange.rank == 0 else np.array([1.27, 0.0])
        exchange.average([array], 100.0)
        return array

    for value in together(work, exchanges(Gang(4, "parameters", inner="average", compress="int8"))):
        np.testing.assert_allclose(value, [1.27 * 3 / 4, 0.0095 / 4], rtol=1e-12)


def test_memory_is_kept_for_the_largest_model_alone():
    def work(exchange):
        for width in range(1, 60):
            exchange.mean([np.zeros(1000 * width)], 1.0)
        return [memory.numel() for memory in exchange._group._memory.values()]

    assert together(work, exchanges(Gang(2))) == [[59_001]] * 2


def test_gathered_values_are_ordered_by_rank():
    def work(exchange):
        return exchange.gather(b"x" * exchange.rank)

    assert together(work, exchanges(Gang(3))) == [[b"", b"x", b"xx"]] * 3


def test_a_member_that_hangs_up_breaks_the_exchange_of_all():
    from hopyard.exchange.board import GangBroken

    def work(exchange):
        exchange.gather(b"")
        if exchange.rank == 1:
            exchange.close()
            return "closed"
        with pytest.raises(GangBroken, match=r"broke|hung up"):
            for _ in range(3):
                exchange.gather(b"")
        exchange.close()
        return "broken"

    assert together(work, exchanges(Gang(3))) == ["broken", "closed", "broken"]
