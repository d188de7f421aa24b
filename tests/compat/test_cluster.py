"""Clusters on real executors, as users of TensorFlowOnSpark start, feed and end them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.compat.tensorflowonspark import TFCluster, TFNode, TFParallel
from hopyard.errors import ProgramFailed, ResourceError, SpecError

SPARK = TFCluster.InputMode.SPARK


@pytest.fixture(scope="module")
def spark(executors: Any) -> Any:
    return executors


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs make their directories in a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    yield


@pytest.fixture
def sc(spark: Any) -> Any:
    return spark.sparkContext


def squares(args: Any, ctx: Any) -> None:
    feed = TFNode.DataFeed(ctx.mgr, False)
    while not feed.should_stop():
        rows = feed.next_batch(10)
        feed.batch_results([row * row for row in rows])


def consumer(args: Any, ctx: Any) -> None:
    feed = ctx.get_data_feed()
    taken: list[Any] = []
    sizes = []
    while not feed.should_stop():
        rows = feed.next_batch(7)
        taken += rows
        sizes.append(len(rows))
    Path(args["folder"], f"{ctx.executor_id}.txt").write_text(f"{sorted(taken)!r} {sizes!r}")


# ------------------------------------------------------------------------------------------------ starting


def test_parameter_servers_of_the_driver_take_no_slot(sc: Any, tmp_path: Path) -> None:
    """Two executors of one core each hold the two workers."""

    def main(args: Any, ctx: Any) -> None:
        Path(args["folder"], f"{ctx.job_name}-{ctx.task_index}").touch()
        while ctx.job_name == "ps" or len(list(Path(args["folder"]).glob("*-*"))) < 3:
            time.sleep(0.01)

    cluster = TFCluster.run(sc, main, {"folder": str(tmp_path)}, 3, 1, driver_ps_nodes=True, reservation_timeout=60)
    cluster.shutdown()
    assert {path.name for path in tmp_path.glob("*-[0-9]")} == {"ps-0", "worker-0", "worker-1"}


def test_each_task_knows_who_it_is_and_the_cluster_ends_with_its_workers(sc: Any, tmp_path: Path) -> None:
    def main(args: Any, ctx: Any) -> None:
        text = f"{ctx.job_name}:{ctx.task_index} of {sorted(ctx.cluster_spec)} {ctx.num_workers} {ctx.tmp_socket}"
        Path(args["folder"], str(ctx.executor_id)).write_text(text)
        while ctx.job_name == "ps" or not Path(args["folder"], "0").exists():
            time.sleep(0.01)

    cluster = TFCluster.run(sc, main, {"folder": str(tmp_path)}, 2, 1)
    assert [node["job_name"] for node in cluster.cluster_info] == ["worker", "ps"]
    assert cluster.tensorboard_url() is None
    cluster.shutdown()
    assert (tmp_path / "0").read_text() == "ps:0 of ['ps', 'worker'] 1 None"
    assert (tmp_path / "1").read_text() == "worker:0 of ['ps', 'worker'] 1 None"


def test_a_held_port_is_nobody_elses_until_it_is_released(sc: Any) -> None:
    def main(args: Any, ctx: Any) -> None:
        import socket

        port = ctx.tmp_socket.getsockname()[1]
        assert ctx.cluster_spec[ctx.job_name][ctx.task_index].endswith(f":{port}")
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("0.0.0.0", port))
        ctx.release_port()
        assert ctx.tmp_socket is None

    TFCluster.run(sc, main, None, 2, 0, master_node="chief", release_port=False).shutdown()


def test_an_error_of_a_task_is_raised_here_with_its_traceback(sc: Any) -> None:
    def main(args: Any, ctx: Any) -> None:
        if ctx.job_name == "chief":
            raise ValueError("the chief's own fault")
        time.sleep(600)

    cluster = TFCluster.run(sc, main, None, 2, 0, master_node="chief")
    with pytest.raises(ProgramFailed, match=r"(?s)chief 0.*the chief's own fault"):
        cluster.shutdown()


def test_a_cluster_that_does_not_end_is_stopped_after_the_timeout(sc: Any) -> None:
    def main(args: Any, ctx: Any) -> None:
        time.sleep(600)

    cluster = TFCluster.run(sc, main, None, 2, 0)
    with pytest.raises(ResourceError, match="timeout=1 "):
        cluster.shutdown(timeout=1)
    assert cluster.program.status == "stopped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_executors": 2, "num_ps": 2}, "leaves 0; ask for more"),
        ({"num_executors": 1, "num_ps": 1, "master_node": "chief"}, "leaves -1"),
        ({"num_executors": 2, "num_ps": 0, "eval_node": True, "input_mode": SPARK}, "eval_node=True is for"),
        ({"num_executors": 2, "num_ps": 1, "driver_ps_nodes": True, "input_mode": SPARK}, "driver_ps_nodes=True is"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        TFCluster.run(None, squares, None, **arguments)


# ------------------------------------------------------------------------------------------------ feeding


def test_all_rows_of_all_epochs_and_calls_come_once_each(sc: Any, tmp_path: Path) -> None:
    cluster = TFCluster.run(sc, consumer, {"folder": str(tmp_path)}, 2, 0, input_mode=SPARK)
    assert sc.parallelize(range(8), 4).sum() == 28  # the executors' cores are free for jobs of the user's
    cluster.train(sc.parallelize(range(100), 5), 2)
    cluster.train(sc.parallelize(range(100, 110), 2), 1)
    cluster.shutdown()
    found = [eval(path.read_text().replace("] [", "], [")) for path in tmp_path.glob("*.txt")]
    assert sorted(row for rows, _ in found for row in rows) == sorted([*range(100), *range(100), *range(100, 110)])
    for _, sizes in found:
        assert set(sizes[:-2]) <= {7}


def test_the_first_versions_reserve_and_then_start_and_no_number_of_epochs_is_ten(sc: Any, tmp_path: Path) -> None:
    cluster = TFCluster.reserve(sc, 2, 0, False, SPARK)
    with pytest.raises(SpecError, match=r"cluster\.train: .*cluster\.start"):
        cluster.train(sc.parallelize(range(3)), 1)
    cluster.start(consumer, {"folder": str(tmp_path)})
    cluster.train(sc.parallelize([(n, "a") for n in range(30)], 3))
    cluster.shutdown()
    taken = [row for path in tmp_path.glob("[01].txt") for row in eval(path.read_text().partition("]")[0] + "]")]
    assert sorted(taken) == sorted([(n, "a") for n in range(30)] * 10)


def test_a_program_that_has_enough_ends_the_feed_without_an_error(sc: Any) -> None:
    def main(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        feed.next_batch(3)
        feed.terminate()

    cluster = TFCluster.run(sc, main, None, 2, 0, input_mode=SPARK)
    cluster.train(sc.parallelize(range(20_000), 8), 3)
    cluster.train(sc.parallelize(range(10), 2), 1)
    cluster.shutdown()


def test_only_declared_feeds_and_only_where_spark_feeds(sc: Any) -> None:
    cluster = TFCluster.run(sc, lambda args, ctx: None, None, 2, 0)
    cluster.shutdown()
    with pytest.raises(SpecError, match=r"TFCluster\.train is for input_mode=InputMode\.SPARK"):
        cluster.train(sc.parallelize([1]))
    cluster.input_mode = SPARK
    with pytest.raises(SpecError, match="qname = 'valid'"):
        cluster.train(sc.parallelize([1]), qname="valid")
    with pytest.raises(SpecError, match="num_epochs must be an integer >= 0, got -1"):
        cluster.train(sc.parallelize([1]), -1)


# ------------------------------------------------------------------------------------------------ inference


def test_each_row_has_its_answer_in_its_place(sc: Any) -> None:
    cluster = TFCluster.run(sc, squares, None, 2, 0, input_mode=SPARK)
    rdd = sc.parallelize(range(107), 5)
    answers = cluster.inference(rdd)
    assert answers.collect() == [n * n for n in range(107)]
    assert answers.glom().map(len).collect() == rdd.glom().map(len).collect()
    cluster.shutdown()


def test_an_error_while_it_is_fed_is_raised_here(sc: Any) -> None:
    def main(args: Any, ctx: Any) -> None:
        TFNode.DataFeed(ctx.mgr, False).next_batch(10)
        raise ValueError("no more of this")

    cluster = TFCluster.run(sc, main, None, 2, 0, input_mode=SPARK)
    with pytest.raises(ProgramFailed, match="no more of this"):
        cluster.train(sc.parallelize(range(1_000_000), 10), 5)
        cluster.shutdown()


def test_an_error_after_it_was_fed_is_raised_by_shutdown(sc: Any) -> None:
    def main(args: Any, ctx: Any) -> None:
        squares(args, ctx)
        time.sleep(1)
        raise ValueError("when all was over")

    cluster = TFCluster.run(sc, main, None, 2, 0, input_mode=SPARK)
    assert cluster.inference(sc.parallelize(range(10), 2)).count() == 10
    with pytest.raises(ProgramFailed, match="when all was over"):
        cluster.shutdown(grace_secs=5)


# ------------------------------------------------------------------------------------------------ parallel


@pytest.mark.parametrize("barrier", [True, False])
def test_a_function_runs_on_each(sc: Any, tmp_path: Path, barrier: bool) -> None:
    def main(args: Any, ctx: Any) -> None:
        text = f"{args['x']} {ctx.worker_num} {ctx.num_workers} {ctx.absolute_path('/a')}"
        Path(args["folder"], str(ctx.executor_id)).write_text(text)

    TFParallel.run(sc, main, {"x": 3, "folder": str(tmp_path)}, 2, use_barrier=barrier)
    assert [(tmp_path / name).read_text() for name in "01"] == ["3 0 2 file:///a", "3 1 2 file:///a"]


def test_without_a_barrier_there_may_be_more_than_slots(sc: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)
    TFParallel.run(sc, lambda args, ctx: Path(folder, str(ctx.worker_num)).touch(), None, 5, use_barrier=False)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == set("01234")
