from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feed_servers import TOKEN, feed_server, later, numbers
from hopyard.agent.programs.task import _user_traceback as user_traceback
from hopyard.core.programs.feed_progress import Count, Uneven, allowed
from hopyard.errors import DataError, HopyardError, SpecError
from hopyard.feeds.protocol import PICKLE
from hopyard.feeds.queue import FeedQueue
from hopyard.feeds.reader import Feed
from hopyard.feeds.receiver import FeedServer
from hopyard.feeds.sender import Route, send_partition
from hopyard.feeds.spark_tasks import answered, ask, by_row
from hopyard.feeds.streams import Block


def fed(server: FeedServer, *partitions: list[Any], end: bool = True) -> Feed:
    for number, blocks in enumerate(partitions):
        send_partition(Route((server.endpoint,), TOKEN), number, blocks)
    if end:
        server.queue("train").end()
    return Feed(server.queue("train"))


def test_batches_have_their_size_across_blocks_and_partitions(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, [numbers(0, 10), numbers(10, 3)], [numbers(13, 9)])
        got = list(feed.batches(4))
        assert [len(batch["y"]) for batch in got] == [4, 4, 4, 4, 4, 2]
        assert np.concatenate([batch["y"] for batch in got]).tolist() == list(range(22))
        assert got[2]["x"].tolist() == [[n, n + 1, n + 2] for n in range(8, 12)]
        assert {(batch["x"].dtype.name, batch["y"].dtype.name) for batch in got} == {("float32", "int64")}
        assert feed.should_stop


def test_batches_inside_a_block_are_views_that_may_be_written(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        one, two = fed(server, [numbers(0, 8)]).batches(4)
        assert one["x"].base is not None and one["x"].flags.writeable
        one["x"][:] = 0
        assert two["x"][0, 0] == 4


def test_ways_of_taking_rows_go_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, [numbers(0, 10)])
        assert next(feed.batches(3))["y"].tolist() == [0, 1, 2]
        assert next(feed.rows(2)) == [([3.0, 4.0, 5.0], 3), ([4.0, 5.0, 6.0], 4)]
        assert next(feed.batches(100))["y"].tolist() == [5, 6, 7, 8, 9]
        assert list(feed.rows(1)) == []


def test_waiting_rows_are_given_when_the_wait_is_over(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, [numbers(0, 3)], end=False)
        batches = feed.batches(10, timeout=0.05)
        assert len(next(batches)["y"]) == 3
        later(lambda: (time.sleep(0.2), server.queue("train").end()))
        assert list(batches) == [] and not threading.current_thread().daemon


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8"])
def test_a_bad_size_is_refused_at_the_call(tmp_path: Path, size: Any) -> None:
    with feed_server(tmp_path) as server, pytest.raises(SpecError, match=r"size must .*>= 1"):
        fed(server).batches(size)


def test_the_traceback_of_hopyard_s_own_error_ends_at_the_user_s_line(tmp_path: Path) -> None:
    def main(feed: Any) -> None:
        next(feed.batches(4))

    with feed_server(tmp_path) as server:
        feed = fed(server, [pa.record_batch({"a": [1, None, 3, 4]})])
        with pytest.raises(DataError, match="'a'") as raised:
            main(feed)
    lines = "".join(user_traceback(raised.value)).splitlines()
    frames = [line for line in lines if line.startswith("  File ")]
    assert len(frames) == 2 and frames[-1].endswith("in main") and all(__file__ in frame for frame in frames)
    assert lines[-1].startswith("hopyard.errors.DataError: ")


def test_the_traceback_of_another_error_has_all_frames(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, [pa.record_batch({"a": [1, 2, 3, 4]})])
        with pytest.raises(AttributeError) as raised:
            feed._queue = None  # type: ignore[assignment]
            next(feed.batches(4))
    text = "".join(user_traceback(raised.value))
    assert text.count("reader.py") >= 2 and text.endswith("has no attribute 'rule'\n")


def test_columns_that_are_not_named_may_hold_anything(tmp_path: Path) -> None:
    batch = pa.record_batch([pa.array([1, 2, 3]), pa.array([None, 0.5, None]), pa.array([{"k": 1}] * 3)], list("abc"))
    with feed_server(tmp_path) as server:
        feed = fed(server, [batch])
        batches = feed.batches(2, columns=["a"])
        assert {name: array.tolist() for name, array in next(batches).items()} == {"a": [1, 2]}
        with pytest.raises(DataError, match=r"column 'b' .*null.*columns=\[…\]"):
            next(feed.batches(1))


def test_of_python_rows_too(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        (batch,) = fed(server, [[("x", None, 1), ("y", "b", 2)]]).batches(2, columns=["_3", "_1"])
        assert {name: array.tolist() for name, array in batch.items()} == {"_3": [1, 2], "_1": ["x", "y"]}


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, [numbers(0, 3)])
        with pytest.raises(SpecError, match=r"columns must .* 'y'"):
            feed.batches(2, columns="y")
        with pytest.raises(DataError, match="feed 'train' has no column 'z'; there are: 'x', 'y'"):
            next(feed.batches(2, columns=["y", "z"]))


def test_a_data_set_of_some_columns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    batch = pa.record_batch([pa.array([1, 2, 3]), pa.array([None, 0.5, None])], list("ab"))
    with feed_server(tmp_path) as server:
        (found,) = fed(server, [batch]).dataset(3, "torch", columns=["a"])
        assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [1, 2, 3]}


def column(values: Any, kind: Any = None) -> list[Any]:
    return [pa.record_batch([pa.array(values, kind)], ["c"])]


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "shape"),
    [
        ([True, False], None, "bool", (2,)),
        ([1, 2], pa.int8(), "int8", (2,)),
        ([[1, 2], [3, 4]], pa.list_(pa.int32()), "int32", (2, 2)),
        ([[[1.0], [2.0]], [[3.0], [4.0]]], pa.list_(pa.list_(pa.float64())), "float64", (2, 2, 1)),
        (["a", "bcd"], None, "object", (2,)),
        (["a", None], None, "object", (2,)),
        ([b"ab", b"cd"], None, "object", (2,)),
        (["a", "a"], pa.dictionary(pa.int8(), pa.string()), "object", (2,)),
    ],
)
def test_columns_as_arrays(tmp_path: Path, values: Any, kind: Any, dtype: str, shape: tuple[int, ...]) -> None:
    with feed_server(tmp_path) as server:
        (batch,) = fed(server, column(values, kind)).batches(10)
        assert (batch["c"].dtype.name, batch["c"].shape) == (dtype, shape)
        assert batch["c"].tolist() == values


def test_vectors_are_arrays(tmp_path: Path) -> None:
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    dense = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
    sparse = {"type": 0, "size": 3, "indices": [2], "values": [5.0]}
    with feed_server(tmp_path) as server:
        (batch,) = fed(server, column([dense, sparse], kind)).batches(10)
        assert batch["c"].tolist() == [[1, 2, 3], [0, 0, 5]]


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (column([1.0, None]), "column 'c' of feed 'train': 1 of 2 rows .*row 1"),
        (column([[1.0, None]], pa.list_(pa.float64())), "column 'c'.*null"),
        (column([[1], [1, 2]]), "column 'c' .*differ in length"),
        (column([[1, 2]]) + column([[1, 2, 3]]), "column 'c'.*differ in shape"),
        (column([{"a": 1}]), "column 'c' .*no array"),
        ([["a", None]], "'value' .*holds None"),
        ([np.ma.masked_equal([[1, 2], [3, 4]], 4)], "'value' .*holds None or masked"),
        ([[np.ma.masked, 1.0]], "'value' .*holds None or masked"),
        ([[("a", [1]), ("b", [1, 2])]], "column '_2' .*differ in length"),
    ],
)
def test_a_value_that_is_no_array_is_named_and_fails_the_feed(tmp_path: Path, blocks: list[Any], words: str) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, blocks, end=False)
        server.queue("train").end()
        with pytest.raises(DataError, match=words):
            next(feed.batches(10))
        with pytest.raises(HopyardError, match=words):
            send_partition(Route((server.endpoint,), TOKEN), 5, blocks)


ROWS: list[list[Any]] = [
    [([1.5, 2.5], 1), ([3.5, 4.5], 2)],
    [[1, 2], [3, 4]],
    [1.0, 2.0],
    [1, 2**70],
    ["a", "b"],
    [{"a": 1}, {"b": None}],
    [(1, "x"), (2, "y")],
    [(True, False), (False, True)],
    [([1], 1), ([1, 2], 2)],
    [b"abc", None],
]


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_python_rows_come_back_as_they_were(tmp_path: Path, rows: list[Any]) -> None:
    with feed_server(tmp_path) as server:
        (got,) = fed(server, [rows]).rows(10)
        assert got == rows and list(map(type, got)) == list(map(type, rows))


def test_columns_of_python_rows(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = fed(server, [[([1.5, 2.5], 1), ([3.5, 4.5], 2)]], [[("a", 1), ("b", 2)]], [["x", "y"]])
        one, two, three = feed.batches(2)
        assert one["_1"].tolist() == [[1.5, 2.5], [3.5, 4.5]] and one["_2"].tolist() == [1, 2]
        assert two["_1"].tolist() == ["a", "b"] and two["_1"].dtype == object
        assert three["value"].tolist() == ["x", "y"]


def test_arrays_in_rows_keep_shape_and_type(tmp_path: Path) -> None:
    rows = [(np.full((2, 3), n, np.float32), n) for n in range(4)]
    with feed_server(tmp_path) as server:
        (got,) = fed(server, [rows]).rows(10)
        assert [label for _, label in got] == [0, 1, 2, 3]
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for (a, _), (b, _) in zip(got, rows, strict=True))
    with feed_server(tmp_path) as server:
        (batch,) = fed(server, [rows]).batches(10)
        assert batch["_1"].shape == (4, 2, 3) and batch["_1"].dtype == np.float32
        assert np.array_equal(batch["_1"][3], rows[3][0])


@pytest.mark.tensorflow
def test_a_tensorflow_data_set_has_batches(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    with feed_server(tmp_path) as server:
        text = pa.record_batch([pa.array(["a", "b", "c"]), pa.array([[1.0], [2.0], [3.0]])], ["t", "x"])
        data = fed(server, [text]).dataset(2)
        got = [{name: part.numpy().tolist() for name, part in batch.items()} for batch in data]
        assert got == [{"t": [b"a", b"b"], "x": [[1.0], [2.0]]}, {"t": [b"c"], "x": [[3.0]]}]


@pytest.mark.tensorflow
def test_a_tensorflow_data_set_of_no_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    with feed_server(tmp_path) as server:
        assert list(fed(server).dataset(2)) == []


def test_a_torch_data_set_has_batches(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    with feed_server(tmp_path) as server:
        data = fed(server, [numbers(0, 5)]).dataset(2, "torch")
        got = list(torch.utils.data.DataLoader(data, batch_size=None))
        assert [batch["y"].tolist() for batch in got] == [[0, 1], [2, 3], [4]]
        assert got[0]["x"].dtype == torch.float32


def test_a_framework_that_is_none(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server, pytest.raises(SpecError, match=r"framework must be .* got 'theano'"):
        fed(server).dataset(2, "theano")


# Inference


def asked(server: FeedServer, partition: int, blocks: list[Any]) -> Future[Any]:
    def run() -> list[Any]:
        return [
            value for values in ask(Route((server.endpoint,), TOKEN, "infer"), partition, blocks) for value in values
        ]

    return later(run)


def test_answers_come_in_order_as_many_as_rows(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        first = asked(server, 0, [numbers(0, 10), numbers(10, 3)])
        feed = Feed(server.queue("infer"))
        sizes = []
        for batch in feed.batches(4):
            sizes.append(len(batch["y"]))
            feed.answer(batch["y"] * 10)
            if len(sizes) == 4:
                assert first.result(60) == [n * 10 for n in range(13)]
                second = asked(server, 1, [numbers(100, 5)])
            if len(sizes) == 6:
                assert second.result(60) == [n * 10 for n in range(100, 105)]
                feed.terminate()
        assert sizes == [4, 4, 4, 1, 4, 1]


def test_batches_of_inference_never_mix_partitions(tmp_path: Path) -> None:
    with feed_server(tmp_path, limit=1000) as server:
        found = [asked(server, n, [numbers(n * 1000 + k * 30, 30) for k in range(5)]) for n in range(4)]
        later(lambda: ([one.result(60) for one in found], server.finish()))
        feed = Feed(server.queue("infer"))
        for batch in feed.batches(64):
            assert len(set(batch["y"] // 1000)) == 1
            feed.answer(list(map(str, batch["y"].tolist())))
        assert [one.result(60) for one in found] == [[str(n * 1000 + k) for k in range(150)] for n in range(4)]


def test_a_program_may_take_batches_ahead_of_its_answers(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        found = asked(server, 0, [numbers(0, 4)])
        feed = Feed(server.queue("infer"))
        batches = feed.batches(2)
        one, two = next(batches), next(batches)
        feed.answer(one["y"])
        feed.answer(two["y"])
        assert found.result(60) == [0, 1, 2, 3]


@pytest.mark.parametrize("reads", [False, True])
def test_a_program_that_does_not_answer_fails_the_task(tmp_path: Path, reads: bool) -> None:
    with feed_server(tmp_path) as server:
        blocks = [numbers(0, 4)]
        found = later(lambda: list(ask(Route((server.endpoint,), TOKEN, "infer", timeout=0.3), 2, blocks)))
        feed = Feed(server.queue("infer"))
        if reads:
            next(feed.batches(2))
        words = r"worker 0 .* 0\.3 seconds, .* ctx\.feed\('infer'\)"
        with pytest.raises(HopyardError, match=words):
            found.result(60)
        with pytest.raises(HopyardError, match=words):
            next(feed.batches(2))


def test_a_program_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    """Whose turn has not come waits longer than any single answer takes."""
    with feed_server(tmp_path) as server:
        route = Route((server.endpoint,), TOKEN, "infer", timeout=0.4)
        found = [later(lambda n=n: list(ask(route, n, [numbers(n, 4)]))) for n in range(3)]
        later(lambda: ([one.result(30) for one in found], server.finish()))
        feed = Feed(server.queue("infer"))
        for batch in feed.batches(2):
            time.sleep(0.2)
            feed.answer(batch["y"])
        assert [sum(map(len, one.result(60))) for one in found] == [4, 4, 4]
        time.sleep(0.5)  # nobody waits: no stall
        assert server.queue("infer")._requests.stalled == 0


def test_a_program_that_waits_for_slow_rows_is_not_to_blame(tmp_path: Path) -> None:
    """It holds 3 rows for a batch of 4, and the task takes longer for more than the program may."""

    def slowly() -> Any:
        yield numbers(0, 3)
        time.sleep(1.0)
        yield numbers(3, 3)

    with feed_server(tmp_path) as server:
        found = later(lambda: list(ask(Route((server.endpoint,), TOKEN, "infer", timeout=0.3), 0, slowly())))
        later(lambda: (found.result(60), server.finish()))
        feed = Feed(server.queue("infer"))
        for batch in feed.batches(4):
            feed.answer(batch["y"])
        assert sum(map(len, found.result(60))) == 6


def test_patience_is_that_of_who_asks_now(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        feed = Feed(server.queue("infer"))
        batches = feed.batches(4)
        first = later(lambda: list(ask(Route((server.endpoint,), TOKEN, "infer", timeout=0.2), 0, [numbers(0, 4)])))
        feed.answer(next(batches)["y"])
        first.result(60)
        second = later(lambda: list(ask(Route((server.endpoint,), TOKEN, "infer"), 1, [numbers(0, 4)])))
        taken = next(batches)
        time.sleep(0.6)
        feed.answer(taken["y"])
        assert len(second.result(60)[0]) == 4


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], np.zeros(5), {"a": [1, 2], "b": [1]}, []])
def test_wrong_answers_are_reported_on_both_sides(tmp_path: Path, answer: Any) -> None:
    words = r"one value for each .* values .* 2 rows \(partition 6\)"
    with feed_server(tmp_path) as server:
        found = asked(server, 6, [numbers(0, 4)])
        feed = Feed(server.queue("infer"))
        next(feed.batches(2))
        with pytest.raises(DataError, match=words):
            feed.answer(answer)
        with pytest.raises(HopyardError, match=words):
            found.result(60)


def test_an_answer_that_nobody_asked_for(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server, pytest.raises(DataError, match="no batch waits"):
        fed(server, [numbers(0, 4)]).answer([1])


def test_an_inference_after_the_program_is_refused(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        under_way = asked(server, 0, [numbers(0, 4)])
        next(Feed(server.queue("infer")).batches(2))
        server.finish()
        for found in (under_way, asked(server, 1, [numbers(0, 4)])):
            with pytest.raises(HopyardError, match="no more rows"):
                found.result(60)
    with pytest.raises(ConnectionError, match="before the program ends"):
        asked(server, 2, [numbers(0, 4)]).result(60)


def test_a_task_that_wants_only_some_answers(tmp_path: Path) -> None:
    with feed_server(tmp_path, limit=1000) as server:
        answers = ask(Route((server.endpoint,), TOKEN, "infer"), 0, [numbers(n * 30, 30) for n in range(100)])
        feed = Feed(server.queue("infer"))

        def serve() -> list[int]:
            seen = []
            for batch in feed.batches(30):
                seen.append(int(batch["y"][0]))
                feed.answer(batch["y"])
            return seen

        served = later(serve)
        assert next(answers).tolist() == list(range(30))
        answers.close()  # type: ignore[attr-defined]
        assert asked(server, 1, [numbers(7000, 2)]).result(60) == [7000, 7001]
        server.finish()
        assert served.result(60)[-1] == 7000


def test_rows_that_cannot_be_computed_are_the_error_of_the_task(tmp_path: Path) -> None:
    def broken() -> Any:
        yield numbers(0, 2)
        raise ZeroDivisionError("in the lineage")

    with feed_server(tmp_path) as server:
        found = later(lambda: list(ask(Route((server.endpoint,), TOKEN, "infer"), 0, broken())))
        with pytest.raises(ZeroDivisionError):
            found.result(60)


def test_answers_row_by_row() -> None:
    assert list(by_row(np.arange(2))) == [0, 1]
    assert list(by_row(["a", None])) == ["a", None]
    assert [row.tolist() for row in by_row(np.eye(2))] == [[1, 0], [0, 1]]
    assert list(by_row({"a": np.arange(2), "b": ["x", "y"]})) == [(0, "x"), (1, "y")]


def test_answers_as_columns() -> None:
    one = pa.schema([("p", pa.float64())])
    two = pa.schema([("p", pa.list_(pa.float32())), ("t", pa.string())])
    assert answered(np.arange(2, dtype=np.float32), one).to_pydict() == {"p": [0.0, 1.0]}
    assert answered([1.5, None], one).to_pydict() == {"p": [1.5, None]}
    expected = {"p": [[1.0, 0.0], [0.0, 1.0]], "t": ["x", "y"]}
    assert answered({"t": ["x", "y"], "p": np.eye(2)}, two).to_pydict() == expected
    assert answered([([1.0, 0.0], "x"), ([0.0, 1.0], "y")], two).to_pydict() == expected
    with pytest.raises(DataError, match=r"columns \['p'\], the schema has \['p', 't'\]"):
        answered({"p": [1]}, two)
    with pytest.raises(DataError, match=r"'p' .*type double"):
        answered(["x"], one)


# Feeds whose workers end together


class Driver:
    """Hears what workers count, and tells them what is allowed."""

    def __init__(self, uneven: Uneven, workers: int) -> None:
        self._uneven = uneven
        self._counts = [Count(0, False)] * workers
        self._lock = threading.Lock()
        self.servers: list[FeedServer] = []

    def hear(self, worker: int) -> Any:
        def tell(feed: str, count: Count) -> None:
            with self._lock:
                self._counts[worker] = count
                now = allowed(self._uneven, self._counts)
                for server in self.servers:
                    server.queue(feed).allow(now)

        return tell


@pytest.mark.parametrize(
    ("uneven", "rows", "batches"),
    [("min", (25, 8), (1, 1)), ("min", (45, 38), (4, 4)), ("min", (25, 0), (0, 0)), ("cycle", (45, 8), (5, 5))],
)
def test_workers_end_together(tmp_path: Path, uneven: Uneven, rows: tuple[int, ...], batches: tuple[int, ...]) -> None:
    driver = Driver(uneven, 2)
    with (
        feed_server(tmp_path, 0, on_count=driver.hear(0)) as zero,
        feed_server(tmp_path, 1, on_count=driver.hear(1)) as one,
    ):
        driver.servers = [zero, one]
        for server in driver.servers:
            server.queue("train").uneven = uneven
        found = [
            later(lambda server=server: list(Feed(server.queue("train")).batches(10))) for server in driver.servers
        ]
        route = Route((zero.endpoint, one.endpoint), TOKEN, uneven=uneven)
        for worker, count in enumerate(rows):
            send_partition(route, worker, [numbers(n, min(3, count - n)) for n in range(0, count, 3)])
        for server in driver.servers:
            server.queue("train").end()
        got = [one.result(60) for one in found]
        assert tuple(map(len, got)) == batches
        if uneven == "cycle":
            assert [batch["y"].tolist() for batch in got[1]] == [list(range(8))] * 5
        elif batches[0]:
            assert got[0][0]["y"].tolist() == list(range(10))


def test_a_worker_without_rows_has_none_to_repeat(tmp_path: Path) -> None:
    driver = Driver("cycle", 2)
    with feed_server(tmp_path, 0, on_count=driver.hear(0)) as server:
        server.queue("train").uneven = "cycle"
        server.queue("train").allow(Count(3, False))
        server.queue("train").end()
        with pytest.raises(DataError, match="got no rows"):
            next(Feed(server.queue("train")).batches(10))


@pytest.mark.parametrize("uneven", ["min", "cycle"])
@pytest.mark.parametrize("main", ["leaves its feed", "is over", "was over before"])
def test_a_worker_that_never_asked_is_not_awaited(tmp_path: Path, uneven: Uneven, main: str) -> None:
    driver = Driver(uneven, 2)
    with (
        feed_server(tmp_path, 0, on_count=driver.hear(0)) as zero,
        feed_server(tmp_path, 1, on_count=driver.hear(1)) as one,
    ):
        driver.servers = [zero, one]
        if main == "was over before":
            one.finish()
        for server in driver.servers:
            server.queue("train").uneven = uneven
        found = later(lambda: len(list(Feed(zero.queue("train")).batches(10))))
        for worker in range(2):
            send_partition(
                Route((zero.endpoint, one.endpoint), TOKEN, uneven=uneven), worker, [numbers(0, 30)], worker=worker
            )
        zero.queue("train").end()
        if main == "leaves its feed":
            Feed(one.queue("train")).terminate()
        if main == "is over":
            one.finish()
        assert found.result(60) == (0 if uneven == "min" else 3)


def test_a_worker_without_rows_that_never_asked_is_not_awaited(tmp_path: Path) -> None:
    driver = Driver("min", 2)
    with (
        feed_server(tmp_path, 0, on_count=driver.hear(0)) as zero,
        feed_server(tmp_path, 1, on_count=driver.hear(1)) as one,
    ):
        driver.servers = [zero, one]
        for server in driver.servers:
            server.queue("train").uneven = "min"
        found = later(lambda: list(Feed(zero.queue("train")).batches(10)))
        send_partition(Route((zero.endpoint, one.endpoint), TOKEN, uneven="min"), 0, [numbers(0, 30)])
        one.queue("train").end()
        assert found.result(60) == []


@pytest.mark.parametrize("uneven", ["min", "cycle"])
def test_a_worker_that_leaves_early_counts_what_it_took(tmp_path: Path, uneven: Uneven) -> None:
    told: list[Count] = []
    with feed_server(tmp_path, on_count=lambda _, count: told.append(count)) as server:
        server.queue("train").uneven = uneven
        server.queue("train").allow(Count(9, False))
        send_partition(Route((server.endpoint,), TOKEN, uneven=uneven), 0, [numbers(0, 50)])
        feed = Feed(server.queue("train"))
        batches = feed.batches(10)
        for _ in range(2):
            next(batches)
        feed.terminate()
        assert list(batches) == []
    assert told == [Count(5, False), Count(2, True)]


def test_a_worker_that_asks_and_has_no_rows_says_so(tmp_path: Path) -> None:
    told: SimpleQueue[Count] = SimpleQueue()
    with feed_server(tmp_path, on_count=lambda _, count: told.put(count)) as server:
        server.queue("train").uneven = "min"
        assert told.empty()
        turn = later(server.queue("train").turn, 0, 10)
        assert told.get(timeout=60) == Count(0, False)
        server.queue("train").allow(Count(0, True))
        assert turn.result(60) == "end"


def test_a_feed_after_a_main_that_failed_fails_too(tmp_path: Path) -> None:
    told: list[Count] = []
    with feed_server(tmp_path, on_count=lambda _, count: told.append(count)) as server:
        server.finish("worker 0 failed: ValueError")
        with pytest.raises(HopyardError, match="worker 0 failed: ValueError"):
            send_partition(Route((server.endpoint,), TOKEN, uneven="min"), 0, [numbers(0, 5)])
        assert told == []  # others must not end as if all were well


def files_in(folder: Path) -> int:
    """Descriptors and mappings that this process has of files there."""
    links = Path("/proc/self/fd").iterdir()
    descriptors = sum(os.path.realpath(link).startswith(str(folder)) for link in links)
    return descriptors + Path("/proc/self/maps").read_text().count(str(folder))


def test_rows_beyond_the_limit_wait_in_files_where_workers_end_together(tmp_path: Path) -> None:
    driver = Driver("min", 1)
    with feed_server(tmp_path, on_count=driver.hear(0), limit=100) as server:
        driver.servers = [server]
        route = Route((server.endpoint,), TOKEN, uneven="min")
        assert send_partition(route, 0, [numbers(n, 100) for n in range(0, 1000, 100)]).rows == 1000
        server.queue("train").end()
        got = list(Feed(server.queue("train")).batches(300))
        assert np.concatenate([batch["y"] for batch in got]).tolist() == list(range(1000))


def test_spilled_rows_take_one_descriptor_and_return_it(tmp_path: Path) -> None:
    with feed_server(tmp_path, limit=100) as server:
        server.queue("train").uneven = "min"
        server.queue("train").allow(Count(10**6, False))
        batches = Feed(server.queue("train")).batches(1000)
        for partition in range(2):
            route = Route((server.endpoint,), TOKEN, uneven="min")
            send_partition(route, partition, [numbers(n, 100) for n in range(0, 5000, 100)])
            assert files_in(tmp_path) == 1
            for start in range(0, 5000, 1000):
                batch = next(batches)
                assert batch["y"].tolist() == list(range(start, start + 1000))
                batch["x"][:] = 0
            assert files_in(tmp_path) == 0
        send_partition(route, 2, [numbers(n, 100) for n in range(0, 500, 100)])
        server.finish()
        assert files_in(tmp_path) == 0


def test_blocks_from_a_file_are_views_that_may_be_written(tmp_path: Path) -> None:
    with feed_server(tmp_path, limit=100) as server:
        send_partition(Route((server.endpoint,), TOKEN, uneven="min"), 0, [numbers(0, 100), numbers(100, 100)])
        server.queue("train").allow(Count(4, False))
        batches = Feed(server.queue("train")).batches(50)
        _, _, three, four = (next(batches) for _ in range(4))
        assert three["x"].base is not None and three["x"].flags.writeable
        three["x"][:] = 0
        assert four["x"][0, 0] == 150


def test_a_full_disk_fails_the_feed_and_says_which(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("1m")
    words = (
        rf"feed 'train': [\d,]+ bytes .* {disk} on {socket.gethostname()} .*No space left.* "
        r"free space there, or set TMPDIR"
    )
    with feed_server(disk, limit=1000) as server:
        sent = later(
            send_partition,
            Route((server.endpoint,), TOKEN, uneven="min"),
            0,
            (numbers(n, 1000, 100) for n in range(9)),
        )
        with pytest.raises(HopyardError, match=words):
            sent.result(60)
        server.queue("train").uneven = "min"
        with pytest.raises(HopyardError, match=words):
            next(Feed(server.queue("train")).batches(10))
        stat = os.statvfs(disk)
        assert stat.f_bfree > 0.9 * stat.f_blocks


def test_an_unreadable_spill_file_fails_the_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with feed_server(tmp_path, limit=100) as server:
        send_partition(Route((server.endpoint,), TOKEN, uneven="min"), 0, [numbers(n, 100) for n in range(0, 300, 100)])
        server.queue("train").allow(Count(1, False))
        monkeypatch.setattr("os.preadv", lambda *_: 0)
        with pytest.raises(HopyardError, match=r"read back .*TMPDIR"):
            next(Feed(server.queue("train")).batches(300))
        with pytest.raises(HopyardError, match="be read back"):
            send_partition(Route((server.endpoint,), TOKEN, uneven="min"), 1, [numbers(0, 1)])


def test_a_block_that_came_twice_leaves_its_room_to_who_waits(tmp_path: Path) -> None:
    queue = FeedQueue("train", tmp_path, limit=100)
    queue.uneven = "allow"
    stream = queue.open(0, 0)
    assert stream is not None
    bodies = [queue.reserve(stream, 40) for _ in range(2)]
    twins = [Block(PICKLE, 1, body, None, stream, 0) for body in bodies]
    assert queue.put(twins[0], 0, 0, b"same")
    assert queue.take().block is twins[0]
    waiting = later(queue.reserve, stream, 80)
    time.sleep(0.1)
    assert not waiting.done()
    assert not queue.put(twins[1], 0, 0, b"same")
    assert len(waiting.result(60)) == 80
