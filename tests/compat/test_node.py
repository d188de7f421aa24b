"""What a `map_fun` holds: paths, feeds over queues and over a program's feed, ports, the numbers of its task."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopyard.compat.tensorflowonspark import TFManager, TFNode, util
from hopyard.compat.tensorflowonspark.marker import EndPartition
from hopyard.compat.tensorflowonspark.TFSparkNode import Meta, TFNodeContext, context, program_main
from hopyard.errors import RunDirectoryError, SpecError

# ------------------------------------------------------------------------------------------------ paths


@pytest.mark.parametrize(
    "path", ["hdfs://nn:8020/a", "s3a://bucket/a", "file:///a", "viewfs://x/a", "webhdfs://nn/a", "obs://b/a"]
)
def test_a_path_with_a_scheme_is_whole(path: str) -> None:
    assert TFNodeContext(defaultFS="hdfs://nn:8020").absolute_path(path) == path


def test_an_absolute_path_is_on_the_default_file_system() -> None:
    assert TFNodeContext(defaultFS="hdfs://nn:8020").absolute_path("/a/b") == "hdfs://nn:8020/a/b"
    assert TFNodeContext(defaultFS="file://").absolute_path("/a/b") == "file:///a/b"


def test_a_relative_path_is_the_users_or_of_the_working_directory() -> None:
    mine = getpass.getuser()
    assert TFNodeContext(defaultFS="viewfs://").absolute_path("a/b") == f"viewfs:///user/{mine}/a/b"
    assert TFNodeContext(defaultFS="file://", working_dir="/home/me").absolute_path("a/b") == "file:///home/me/a/b"


def test_of_an_unknown_file_system_it_is_of_its_root(caplog: pytest.LogCaptureFixture) -> None:
    assert TFNodeContext(defaultFS="maprfs://c").absolute_path("a") == "maprfs://c/a"
    assert "'a' is relative" in caplog.text


# ------------------------------------------------------------------------------------------------ queues


def queued(*items: Any) -> TFManager.TFManager:
    mgr = TFManager.start(b"key", ["input", "output"])
    queue = mgr.get_queue("input")
    assert queue is not None
    for item in items:
        queue.put(item)
    return mgr


def test_batches_go_across_partitions_in_training_and_the_last_is_short() -> None:
    feed = TFNode.DataFeed(queued(1, 2, EndPartition(), 3, 4, 5, None))
    assert feed.next_batch(3) == [1, 2, 3]
    assert not feed.should_stop()
    assert feed.next_batch(3) == [4, 5]
    assert feed.should_stop()
    assert feed.done_feeding


def test_batches_end_with_a_partition_in_inference() -> None:
    mgr = queued(1, 2, EndPartition(), EndPartition(), 3, None)
    feed = TFNode.DataFeed(mgr, train_mode=False)
    assert feed.next_batch(3) == [1, 2]
    feed.batch_results([10, 20])
    assert feed.next_batch(3) == [3]
    feed.batch_results([30])
    answers = mgr.get_queue("output")
    assert answers is not None
    assert [answers.get_nowait() for _ in range(3)] == [10, 20, 30]


def test_a_mapping_gives_columns_in_the_order_of_their_names() -> None:
    feed = TFNode.DataFeed(queued((1, "a"), (2, "b"), None), input_mapping={"y": "label", "x": "image"})
    assert feed.next_batch(5) == {"image": [1, 2], "label": ["a", "b"]}
    assert feed.next_batch(5) == {"image": [], "label": []}


def test_terminate_drops_what_waits() -> None:
    mgr = queued(1, 2, 3)
    feed = TFNode.DataFeed(mgr)
    feed.terminate()
    assert feed.should_stop()
    assert mgr.get("state") == "terminating"
    assert feed.next_batch(2) == []


@pytest.mark.parametrize("name", ["next_batch", "batch_results", "terminate"])
def test_functions_that_are_long_gone_name_their_successors(name: str) -> None:
    arguments = {"next_batch": (None, 1), "batch_results": (None, []), "terminate": (None,)}[name]
    with pytest.raises(SpecError, match=f"TFNode.{name} is gone: use TFNode.DataFeed"):
        getattr(TFNode, name)(*arguments)


# ------------------------------------------------------------------------------------------------ in a program


class Rows:
    """A feed of a program, of some rows."""

    def __init__(self, *rows: Any) -> None:
        self._left = list(rows)
        self.answered: list[Any] = []
        self.terminated = False

    @property
    def should_stop(self) -> bool:
        return self.terminated or not self._left

    def rows(self, size: int) -> Iterator[list[Any]]:
        while self._left:
            given, self._left = self._left[:size], self._left[size:]
            yield given

    def answer(self, rows: list[Any]) -> None:
        self.answered += rows

    def terminate(self) -> None:
        self.terminated = True


def program(role: str = "worker", index: int = 0, feed: Any = None, port: int = 1) -> Any:
    peers = {"chief": ["h:1"], "worker": [f"127.0.0.1:{port}", "h:3"], "ps": ["h:4", "h:5"]}
    return SimpleNamespace(role=role, index=index, peers=peers, feed=lambda name: feed)


META = Meta("file://", "/home/me", order=("ps", "chief", "worker"))


def test_tasks_are_numbered_ps_first_then_chief_then_workers() -> None:
    numbers = [context(program(*task), META).executor_id for task in (("ps", 1), ("chief", 0), ("worker", 1))]
    assert numbers == [1, 2, 4]


def test_a_context_has_what_the_cluster_is() -> None:
    ctx = context(program("chief"), META)
    assert (ctx.job_name, ctx.task_index, ctx.num_workers, ctx.tmp_socket) == ("chief", 0, 3, None)
    assert ctx.cluster_spec["ps"] == ["h:4", "h:5"]
    assert ctx.absolute_path("a") == "file:///home/me/a"


def test_a_feed_reads_batches_of_any_size_and_answers() -> None:
    rows = Rows(*range(5))
    feed = context(program(feed=rows), META).get_data_feed(train_mode=False)
    assert feed.next_batch(2) == [0, 1]
    assert feed.next_batch(4) == [2, 3, 4]
    feed.batch_results(iter([1, 2, 3]))
    assert rows.answered == [1, 2, 3]
    assert feed.should_stop()
    assert feed.next_batch(4) == []


def test_the_answer_to_an_empty_batch_is_none() -> None:
    class Strict(Rows):
        def answer(self, rows: list[Any]) -> None:
            raise AssertionError(rows)

    feed = context(program(feed=Strict()), META).get_data_feed(train_mode=False)
    feed.batch_results([row for row in feed.next_batch(4)])


def test_both_ways_to_a_feed_give_the_same_rows() -> None:
    ctx = context(program(feed=Rows(1, 2)), META)
    assert TFNode.DataFeed(ctx.mgr).next_batch(1) == [1]
    assert ctx.get_data_feed().next_batch(1) == [2]


def test_terminate_reaches_the_feed() -> None:
    rows = Rows(1)
    ctx = context(program(feed=rows), META)
    ctx.get_data_feed().terminate()
    assert rows.terminated
    assert ctx.mgr.get("state") == "terminating"


def test_a_port_is_held_until_it_is_released() -> None:
    with socket.socket() as agent:
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        agent.bind(("127.0.0.1", 0))
        port = agent.getsockname()[1]
        ctx = context(program(port=port), Meta("file://", "/", release_port=False, order=META.order))
        held = ctx.tmp_socket
        assert held is not None
        assert held.getsockname()[1] == port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    ctx.release_port()
    assert ctx.tmp_socket is None
    ctx.release_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_a_list_of_arguments_is_the_programs_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    main = program_main(lambda args, ctx: (list(sys.argv), ctx.job_name), META)
    assert main(["train.py", "--steps", "3"], program()) == (["train.py", "--steps", "3"], "worker")
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert main({"steps": 3}, program()) == (["pytest"], "worker")


def test_rdma_is_reported_as_unsupported() -> None:
    with pytest.raises(SpecError, match="no RDMA transport"):
        TFNodeContext().start_cluster_server(rdma=True)


# ------------------------------------------------------------------------------------------------ util


def test_the_number_of_an_executor_is_kept_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"use ctx\.executor_id"):
        util.read_executor_id()
    util.write_executor_id(3)
    assert util.read_executor_id() == 3


def test_files_are_found_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tool").write_text("")
    path = f"{tmp_path}/a:{tmp_path}/b"
    assert util.find_in_path(path, "tool") == str(tmp_path / "b" / "tool")
    assert util.find_in_path(path, "other") is False


def test_this_host_has_an_address() -> None:
    assert socket.inet_aton(util.get_ip_address())
