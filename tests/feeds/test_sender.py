from __future__ import annotations

import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feed_servers import TOKEN, feed_server, later, numbers
from hopyard.core.programs.messages import Endpoint
from hopyard.errors import DataError
from hopyard.feeds import sender
from hopyard.feeds.protocol import ARROW, PICKLE, SCHEMA, machine
from hopyard.feeds.reader import Feed
from hopyard.feeds.receiver import FeedServer
from hopyard.feeds.rows import packed, unpacked
from hopyard.feeds.sender import Route, choose_worker, framed
from hopyard.feeds.spark_tasks import FEEDING, answered, cut, feeding, feeding_rows, inferring, inferring_rows

HERE = machine()


@pytest.mark.parametrize("row", [[1.0, 2**60 + 1], [1, True], [True, 2], [1, 2.0]])
def test_mixed_numbers_stay_what_they_are(row: list[Any]) -> None:
    assert packed([(row,), (row,)]) == [(row,), (row,)]


def test_whole_numbers_are_not_cut_from_answers() -> None:
    schema = pa.schema([("y", pa.int32()), ("z", pa.list_(pa.int64()))])
    good = answered({"y": [1, 2.0], "z": [[1], [2, 3]]}, schema)
    assert good.to_pydict() == {"y": [1, 2], "z": [[1], [2, 3]]}
    for bad in ({"y": [2.7, 1], "z": [[1], [2]]}, {"y": [2**40, 1], "z": [[1], [2]]}, {"y": [1, 2], "z": [[1.5], [2]]}):
        with pytest.raises(DataError, match=r"the program's answer '[yz]' does not fit type"):
            answered(bad, schema)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ([HERE, HERE, HERE], [0, 1, 2, 0, 1, 2]),
        (["a", "a", "b"], [0, 1, 2, 0, 1, 2]),
        (["a", HERE, "b"], [1, 1, 1, 1, 1, 1]),
        ([HERE, "a", HERE], [0, 2, 2, 0, 0, 2]),
    ],
)
def test_a_partition_goes_to_a_worker_of_its_machine(machines: list[str], expected: list[int]) -> None:
    servers = [Endpoint(name, "path") for name in machines]
    assert [choose_worker(servers, partition) for partition in range(6)] == expected


def test_a_partition_goes_to_a_worker_of_its_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [Endpoint(HERE, "path", executor=f"host-{number // 2}") for number in range(4)]
    monkeypatch.setattr(sender, "executor", lambda: "host-1")
    assert [choose_worker(servers, partition) for partition in range(4)] == [2, 3, 2, 3]
    monkeypatch.setattr(sender, "executor", lambda: "host-7")
    assert [choose_worker(servers, partition) for partition in range(4)] == [0, 1, 2, 3]


def test_large_batches_go_in_pieces() -> None:
    frames = list(framed([numbers(0, 10), numbers(10, 100_000, 100)]))
    assert [kind for kind, _, _ in frames].count(SCHEMA) == 1
    sizes = [(memoryview(body).nbytes, rows) for kind, body, rows in frames if kind == ARROW]
    assert sum(rows for _, rows in sizes) == 100_010
    assert max(size for size, _ in sizes) < 1.01 * sender.PIECE


def test_a_schema_goes_again_when_it_changes() -> None:
    frames = [kind for kind, _, _ in framed([[1, 2], [1.0, 2.0], ["a"], [3.0]])]
    assert frames == [SCHEMA, ARROW, SCHEMA, ARROW, PICKLE, ARROW]


def test_rows_in_lists() -> None:
    assert list(cut(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(cut([], 2)) == []


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "rows",
    [
        [1, 2],
        [0.5, float("inf")],
        [True, False],
        [(1, 2.5), (3, 4.5)],
        [([1.0, 2.0], 3), ([4.0, 5.0], 6)],
        [[1, 2], [3, 4]],
        [[[1, 2], 0.5], [[3, 4], 1.5]],
    ],
    ids=repr,
)
def test_numbers_are_packed_and_come_back(rows: list[Any]) -> None:
    batch = packed(rows)
    assert isinstance(batch, pa.RecordBatch)
    back = unpacked(batch)
    assert back == rows and repr(back) == repr(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [1, 2.0],
        [1, None],
        [2**63, 1],
        [(1,), (1, 2)],
        [(1, 2), [1, 2]],
        [([1.0], 1), ([1.0, 2.0], 1)],
        [([1, 2.0], 1), ([1, 2], 1)],
        [([], 1), ([], 1)],
        ["a"],
        [{"a": 1}],
        [Point(1, 2)],
        [(np.zeros(2), 1), (np.zeros(3), 1)],
        [(np.zeros(2), 1), (np.zeros(2, np.int8), 1)],
    ],
    ids=repr,
)
def test_other_rows_stay_as_they_are(rows: list[Any]) -> None:
    assert packed(rows) is rows


# On Spark


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[FeedServer]]:
    small = 1 << 20
    with (
        feed_server(tmp_path, 0, apart=True, limit=small) as zero,
        feed_server(tmp_path, 1, apart=True, limit=small) as one,
    ):
        yield [zero, one]


def route(servers: list[FeedServer], feed: str = "train", **more: Any) -> Route:
    return Route(tuple(server.endpoint for server in servers), TOKEN, feed, **more)


def serve(servers: list[FeedServer], feed: str, work: Callable[[Feed], Any]) -> list[Any]:
    return [later(work, Feed(server.queue(feed))) for server in servers]


def taken(feed: Feed) -> list[int]:
    return [int(value) for batch in feed.batches(64) for value in batch["id"]]


def end(servers: list[FeedServer], feed: str = "train") -> None:
    for server in servers:
        server.queue(feed).end()


@pytest.mark.parametrize("partitions", [2, 17])
def test_a_dataframe_is_fed(spark: Any, servers: list[FeedServer], partitions: int) -> None:
    found = serve(servers, "train", taken)
    frame = spark.range(0, 1000, 1, partitions)
    rows = frame.mapInArrow(feeding(route(servers)), FEEDING).collect()
    end(servers)
    shares = [one.result(60) for one in found]
    assert sorted(shares[0] + shares[1]) == list(range(1000))
    assert sum(row.rows for row in rows) == 1000 and len(rows) == partitions
    assert all(row.worker == row.partition % 2 and not row.unwanted for row in rows)


def test_a_dataframe_is_fed_from_another_machine(spark: Any, servers: list[FeedServer]) -> None:
    far = tuple(replace(server.endpoint, machine="another") for server in servers)
    spark.range(0, 100, 1, 3).mapInArrow(feeding(Route(far, TOKEN)), FEEDING).collect()
    end(servers)
    assert sorted(taken(Feed(servers[0].queue("train"))) + taken(Feed(servers[1].queue("train")))) == list(range(100))


def test_rows_come_once_though_spark_tries_again(spark: Any, servers: list[FeedServer]) -> None:
    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            for start in range(0, batch.num_rows, 50):
                if number == 0 and start == 150 and context.attemptNumber() == 0:
                    raise RuntimeError("this attempt ends here")
                yield batch.slice(start, 50)

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        yield from pour_all(failing(batches))

    pour_all = feeding(route(servers))
    rows = spark.range(0, 800, 1, 4).mapInArrow(work, FEEDING).collect()
    assert sum(row.rows for row in rows) == 800
    end(servers)
    assert sorted(taken(Feed(servers[0].queue("train"))) + taken(Feed(servers[1].queue("train")))) == list(range(800))


def test_another_order_in_another_attempt_fails_the_job_and_says_why(spark: Any, servers: list[FeedServer]) -> None:
    pour_all = feeding(route(servers))

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()

        def shuffled() -> Iterator[Any]:
            for batch in batches:
                order = np.random.default_rng(context.attemptNumber()).permutation(batch.num_rows)
                yield batch.take(pa.array(order))
            if context.attemptNumber() == 0:
                raise RuntimeError("this attempt ends here")

        yield from pour_all(shuffled())

    with pytest.raises(Exception, match=r"partition 0 .*different rows"):
        spark.range(0, 100, 1, 1).mapInArrow(work, FEEDING).collect()


def test_an_rdd_is_fed(spark: Any, servers: list[FeedServer]) -> None:
    def work(feed: Feed) -> list[Any]:
        return [row for rows in feed.rows(7) for row in rows]

    def made(n: int) -> Any:
        return ([float(n), 0.5], n) if n < 600 else {"n": n}

    found = serve(servers, "train", work)
    rdd = spark.sparkContext.parallelize(range(1000), 3).map(made)
    rows = rdd.mapPartitionsWithIndex(feeding_rows(route(servers))).collect()
    end(servers)
    shares = [one.result(60) for one in found]
    assert sorted(map(repr, shares[0] + shares[1])) == sorted(repr(made(n)) for n in range(1000))
    assert sum(rows for _, rows, _, _ in rows) == 1000


def test_a_feed_that_is_terminated_ends_its_job(spark: Any, servers: list[FeedServer]) -> None:
    def work(feed: Feed) -> int:
        count = len(next(feed.batches(10))["id"])
        feed.terminate()
        return count

    found = serve(servers, "train", work)
    rows = spark.range(0, 4_000_000, 1, 4).mapInArrow(feeding(route(servers)), FEEDING).collect()
    assert [one.result(60) for one in found] == [10, 10]
    assert len(rows) == 4 and all(row.unwanted for row in rows)
    assert spark.range(3).count() == 3  # and executors are as before


def answering(feed: Feed) -> None:
    for batch in feed.batches(64):
        feed.answer({"twice": batch["id"] * 2.0, "pair": np.stack([batch["id"], batch["id"]], 1)})


def test_inference_of_a_dataframe(spark: Any, servers: list[FeedServer]) -> None:
    found = serve(servers, "infer", answering)
    work = inferring(route(servers, "infer"), "twice double, pair array<int>")
    frame = spark.range(0, 1000, 1, 3).mapInArrow(work, "twice double, pair array<int>")
    assert [(row.twice, row.pair) for row in frame.collect()] == [(n * 2.0, [n, n]) for n in range(1000)]
    assert frame.limit(5).count() == 5
    assert frame.filter("twice > 1000").count() == 499
    for server in servers:
        server.finish()
    assert [one.result(60) for one in found] == [None, None]
    with pytest.raises(Exception, match="no more rows"):
        frame.count()


def test_inference_of_an_rdd(spark: Any, servers: list[FeedServer]) -> None:
    def work(feed: Feed) -> None:
        for rows in feed.rows(10):
            feed.answer([f"<{row}>" for row in rows])

    serve(servers, "infer", work)
    rdd = spark.sparkContext.parallelize(range(100), 3).mapPartitionsWithIndex(inferring_rows(route(servers, "infer")))
    assert rdd.collect() == [f"<{n}>" for n in range(100)]
    assert rdd.take(3) == ["<0>", "<1>", "<2>"]
    assert rdd.count() == 100


def test_inference_with_a_wrong_answer_fails_the_job_and_says_why(spark: Any, servers: list[FeedServer]) -> None:
    def work(feed: Feed) -> None:
        for batch in feed.batches(10):
            feed.answer(batch["id"][:-1])

    serve(servers, "infer", work)
    with pytest.raises(Exception, match=r"9 values .*10 rows"):
        spark.range(0, 100, 1, 2).mapInArrow(inferring(route(servers, "infer"), "a long"), "a long").collect()


def test_a_worker_that_is_gone_fails_the_job_within_seconds(spark: Any, servers: list[FeedServer]) -> None:
    queue = servers[1].queue("train")

    def close() -> None:
        while not queue.received:
            time.sleep(0.01)
        servers[1].close()  # without a word, as the end of its process is

    threading.Thread(target=close, daemon=True).start()
    with pytest.raises(Exception, match="worker 1 of the program") as caught:
        spark.range(0, 4_000_000, 1, 2).mapInArrow(feeding(route(servers)), FEEDING).collect()
    assert "worker 1" in str(caught.value)
