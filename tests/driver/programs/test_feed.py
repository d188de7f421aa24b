"""Rows of this process go to programs on this host: each once, fairly ended, with the error of whoever failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopyard as hy
import programs
from hopyard.driver.programs.sources import source_of
from hopyard.feeds.local_rows import blocks_of
from jobs import table

pytestmark = [pytest.mark.slow, pytest.mark.programs]

ROWS = [{"a": n, "b": [float(n), 1.0]} for n in range(10_000)]


def launch(tmp_path: Path, main: Any = programs.collects, args: Any = None, **how: Any) -> hy.Program:
    return hy.launch(main, args, roles={"worker": 2}, directory=tmp_path / "program", **how)


def driver_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (path := folder / "driver.py").write_text(
        "import hopyard as hy\nfrom pathlib import Path\n" + textwrap.dedent(text)
    )
    return subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


class TestFeed:
    def test_every_row_comes_once_in_each_epoch(self, tmp_path: Path) -> None:
        program = launch(tmp_path)
        assert program.feed(ROWS, epochs=3) == 30_000
        assert program.wait(60).status == "completed"
        assert sum(programs.values(program, "total")) == 3 * sum(range(10_000))

    def test_a_reader_is_read_once_and_sent_in_each_epoch(self, tmp_path: Path) -> None:
        rows = pa.table({"a": range(10_000), "text": pa.array(["x" * 20] * 10_000, pa.string_view())})
        program = launch(tmp_path)
        assert program.feed(rows.to_reader(max_chunksize=3_000), epochs=2) == 20_000
        assert program.wait(60).status == "completed"
        assert sum(programs.values(program, "total")) == 2 * sum(range(10_000))

    def test_record_batches_are_rows_of_one_table(self) -> None:
        """Bug: each of them was sent as one row."""
        rows = pa.table({"a": range(10)})
        for data in (rows.to_batches(max_chunksize=3), rows.to_reader(max_chunksize=3), rows.to_batches()[0]):
            sent = blocks_of(source_of(data)._data)  # type: ignore[attr-defined]
            assert [row for block in sent for row in block.to_pylist()] == rows.to_pylist()
        empty = pa.RecordBatchReader.from_batches(pa.schema([("text", pa.large_string())]), [])
        assert source_of(empty)._data.schema == pa.schema([("text", pa.string())])  # type: ignore[attr-defined]

    @pytest.mark.parametrize("uneven", ["allow", "min", "cycle"])
    def test_how_uneven_feeds_end(self, tmp_path: Path, uneven: str) -> None:
        program = launch(tmp_path)
        program.feed(ROWS, uneven=uneven)  # blocks of 4096, 4096 and 1808 rows, to two workers
        program.wait(60)
        first, second = programs.values(program, "batches")
        assert (first == second) == (uneven != "allow")
        assert first == {"allow": 60, "min": 41, "cycle": 60}[uneven]

    def test_ctrl_c_while_rows_go(self, tmp_path: Path) -> None:
        """The program is told, and no thread goes on sending."""

        def main(args: Any, ctx: Any) -> None:
            for _ in ctx.feed().batches(1):
                (ctx.directory / f"begun-{ctx.index}").touch()
                time.sleep(0.5)

        def interrupt() -> None:
            while len(list((tmp_path / "program").glob("begun-*"))) < 2:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        program = launch(tmp_path, main)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Thread(target=interrupt, daemon=True)
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                program.feed(pa.table({"a": np.zeros(40_000_000)}))
        finally:
            timer.join()
            signal.signal(signal.SIGINT, before)
        with pytest.raises(hy.ProgramFailed, match="feed 'train': interrupted while rows went"):
            program.wait(30)
        until = time.monotonic() + 60
        while time.monotonic() < until and any("hopyard-send" in thread.name for thread in threading.enumerate()):
            time.sleep(0.05)
        assert not [thread.name for thread in threading.enumerate() if "hopyard-send" in thread.name]

    def test_names_that_are_none(self, tmp_path: Path) -> None:
        with launch(tmp_path) as program:
            for name in ("", "\ud800", None):
                with pytest.raises(hy.SpecError, match=r"name=.* must be"):
                    program.feed(ROWS, name=name)  # type: ignore[arg-type]
            with pytest.raises(hy.SpecError, match="several columns named a"):
                program.feed(pa.table([[1], [2]], names=["a", "a"]))

    def test_rows_of_classes_of_the_script(self, tmp_path: Path) -> None:
        script = driver_script(
            tmp_path,
            """
            class Row:
                def __init__(self, n): self.n = n
            def main(args, ctx):
                ctx.report({"sum": sum(row.n for batch in ctx.feed().rows(10) for row in batch)})
            program = hy.launch(main, roles={"worker": 1}, directory=Path("program"))
            program.feed([Row(n) for n in range(10)])
            program.wait(60)
            print(program.summary()["tasks"][0]["values"]["sum"])
            """,
        )
        assert script.stdout.strip() == "45.0", script.stderr

    def test_min_of_none_is_refused(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        program = launch(tmp_path, programs.collects)
        program.feed([{"a": 1}], uneven="min")
        assert program.wait(60).status == "completed"
        assert sum(programs.values(program, "rows")) == 0
        assert "worker 1 had none" in caplog.text

    def test_a_script_is_fed(self, tmp_path: Path) -> None:
        (script := tmp_path / "train.py").write_text(
            "import hopyard as hy\n"
            "ctx = hy.context()\n"
            "ctx.report({'rows': sum(len(batch['a']) for batch in ctx.feed().batches(100))})\n"
        )
        program = launch(tmp_path, script)
        program.feed(ROWS)
        assert program.wait(60).status == "completed"
        assert sum(programs.values(program, "rows")) == 10_000
        with pytest.raises(hy.SpecError, match=r"hy\.context\(\)"):
            hy.context()

    @pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
    def test_a_data_loader_of_several_processes_is_refused(self, tmp_path: Path, start: str) -> None:
        """Each of its workers would give all rows that have come, and wait for more for ever."""
        pytest.importorskip("torch")

        def main(args: str, ctx: Any) -> None:
            from torch.utils.data import DataLoader

            data = ctx.feed().dataset(10, "torch")
            for _ in DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=args):
                pass

        program = launch(tmp_path, main, start)
        with pytest.raises(hy.HopyardError, match="num_workers=0"):
            program.feed({"x": np.arange(400_000.0)})
            program.wait(60)

    def test_a_forked_process_reads_no_feed(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import multiprocessing

            def read(errors: Any) -> None:
                try:
                    next(ctx.feed().batches(10))
                except hy.SpecError as error:
                    errors.put(str(error))

            fork = multiprocessing.get_context("fork")
            errors: Any = fork.SimpleQueue()
            process = fork.Process(target=read, args=(errors,))
            process.start()
            process.join(60)
            assert process.exitcode == 0, "it waits for a lock that was held as it was forked"
            assert "feed 'train'" in errors.get()
            ctx.report({"rows": sum(len(batch["a"]) for batch in ctx.feed().batches(100))})

        program = launch(tmp_path, main)
        program.feed(ROWS)
        assert program.wait(60).status == "completed"
        assert sum(programs.values(program, "rows")) == 10_000

    @pytest.mark.cold
    def test_processes_forked_while_the_feed_opens(self, tmp_path: Path) -> None:
        """Another thread imports what receives rows meanwhile: a fork must not keep that import's lock."""

        def main(args: Any, ctx: Any) -> None:
            import multiprocessing
            import time

            def read() -> None:
                import hopyard.feeds.receiver  # noqa: F401

            fork = multiprocessing.get_context("fork")
            processes = [fork.Process(target=read) for _ in range(100)]
            for process in processes:
                process.start()
                time.sleep(0.005)
            for process in processes:
                process.join(60)
                assert process.exitcode == 0
            ctx.report({"rows": sum(len(batch["a"]) for batch in ctx.feed().batches(100))})

        program = launch(tmp_path, main)
        program.feed(ROWS)
        assert program.wait(60).status == "completed"

    def test_a_task_that_is_stopped_while_others_go_on(self, tmp_path: Path) -> None:
        """What it should be told of each of their blocks keeps its agent from nothing."""

        def main(args: Any, ctx: Any) -> None:
            for number, _ in enumerate(ctx.feed().batches(4096)):
                if ctx.index == 1 and number == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)

        program = launch(tmp_path, main, heartbeat_timeout=2.0)
        with pytest.raises(hy.ProgramFailed, match=r"worker 1 failed: .* was stopped \(SIGSTOP\)"):
            program.feed(pa.table({"a": np.zeros(4096 * 2000, np.int8)}), uneven="cycle")

    def test_a_feed_may_stay_open(self, tmp_path: Path) -> None:
        program = launch(tmp_path)
        for start in range(0, 1000, 100):
            program.feed(ROWS[start : start + 100], end=False)
        program.end_feed()
        assert program.wait(60).status == "completed"
        assert sum(programs.values(program, "rows")) == 1000

    def test_two_feeds_at_once(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            train, valid = ctx.feed("train"), ctx.feed("valid")
            seen = {"train": 0, "valid": 0}
            for batch in train.batches(100):
                seen["train"] += len(batch["a"])
            for batch in valid.batches(100):
                seen["valid"] += len(batch["a"])
            ctx.report(seen)

        program = launch(tmp_path, main)
        program.feed(ROWS[:300], name="valid", end=False)
        program.end_feed("valid")
        program.feed(ROWS[:1000], name="train")
        program.wait(60)
        assert (sum(programs.values(program, "train")), sum(programs.values(program, "valid"))) == (1000, 300)

    @pytest.mark.parametrize("kind", ["dataset", "pandas", "arrow", "objects"])
    def test_sources_of_a_feed(self, tmp_path: Path, kind: str) -> None:
        def main(args: Any, ctx: Any) -> None:
            rows = sum(len(batch) for batch in ctx.feed().rows(50))
            ctx.report({"rows": rows})

        import pandas as pd

        frame = pd.DataFrame({"a": range(500), "text": ["x"] * 500})
        data = {
            "dataset": lambda: hy.Dataset.numpy(*table(500), partitions=3),
            "pandas": lambda: frame,
            "arrow": lambda: pa.Table.from_pandas(frame),
            "objects": lambda: [{1, n} for n in range(500)],
        }[kind]()
        program = launch(tmp_path, main)
        assert program.feed(data) == 500
        program.wait(60)
        assert sum(programs.values(program, "rows")) == 500

    def test_a_failing_worker_fails_the_feed_with_its_error(self, tmp_path: Path) -> None:
        program = launch(tmp_path, args={"fail_at": 500})
        with pytest.raises(hy.ProgramFailed, match="ValueError: row of"):
            program.feed(ROWS, epochs=100)

    def test_enough_is_enough(self, tmp_path: Path) -> None:
        program = launch(tmp_path, args={"enough": 500})
        program.feed(ROWS, epochs=50)
        assert program.wait(60).status == "completed"

    def test_a_worker_that_never_reads(self, tmp_path: Path) -> None:
        refused = pytest.raises(hy.FeedError, match=r"worker \d .* no row for 1 seconds")
        with launch(tmp_path, programs.idle) as program, refused:
            program.feed(ROWS, timeout=1.0)

    def test_a_worker_that_has_ended(self, tmp_path: Path) -> None:
        program = launch(tmp_path, programs.who)
        program.wait(60)
        with pytest.raises(hy.ProgramFailed, match="the program is over"):
            program.feed(ROWS)

    def test_bad_values(self, tmp_path: Path) -> None:
        with launch(tmp_path, programs.idle) as program:
            for how, words in (
                ({"epochs": -1}, r"feed\(epochs=\) must be an integer >= 0, got -1"),
                ({"uneven": "max"}, '"allow", "min" or "cycle"'),
                ({"name": ""}, "must be text"),
                ({"timeout": 0}, r"feed\(timeout=\) must"),
            ):
                with pytest.raises(hy.SpecError, match=words):
                    program.feed(ROWS, **how)
            with pytest.raises(hy.SpecError, match="a list of rows"):
                program.feed(3)
            with pytest.raises(hy.SpecError, match="a DataFrame or an RDD"):
                program.infer(ROWS)


class TestContext:
    def test_shards_paths_checkpoints(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import json
            import os

            import numpy as np

            if ctx.restart == 0:
                ctx.checkpoint({"w": np.arange(3.0), "note": "x"}, step=7)
                while len(list(ctx.directory.glob("checkpoints/*/*.safetensors"))) < 2:
                    time.sleep(0.01)  # the first to end takes the other with it, however far that has come
                os._exit(1)
            tree, step = ctx.restored()
            rows = sum(batch.rows for batch in ctx.shard(args, 32))
            told = {
                "list": ctx.shard(list(range(5))),
                "files": ctx.shard(str(ctx.directory / "program*")),
                "rows": rows,
                "step": step,
                "w": tree["w"].tolist(),
                "paths": [ctx.path("a/b"), ctx.path("/c"), ctx.path("hdfs://d/e")],
            }
            (ctx.directory / f"told-{ctx.rank}").write_text(json.dumps(told))

        import pandas as pd

        pd.DataFrame({"x": range(240), "y": [0.5] * 240}).to_parquet(tmp_path / "rows.parquet")
        data = hy.Dataset.parquet(tmp_path / "rows.parquet", features=["x"], label="y", partitions=5)
        program = launch(tmp_path, main, data, max_restarts=1)
        assert program.wait(60).status == "completed"
        told = [json.loads((program.directory / f"told-{rank}").read_text()) for rank in (0, 1)]
        assert [one["list"] for one in told] == [[0, 2, 4], [1, 3]]
        assert sum(one["rows"] for one in told) == 240 and min(one["rows"] for one in told) > 0
        assert [one["step"] for one in told] == [7, 7] and told[0]["w"] == [0.0, 1.0, 2.0]
        assert told[0]["paths"] == [str(tmp_path / "program" / "a/b"), "/c", "hdfs://d/e"]

    def test_parameter_servers_are_not_fed(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            if ctx.role == "ps":
                ctx.feed()

        program = hy.launch(main, roles={"worker": 1, "ps": 1}, until="all", directory=tmp_path / "program")
        with pytest.raises(hy.ProgramFailed, match="ps 0 is not fed"):
            program.wait(60)

    def test_scalars_are_arrays_or_numbers(self, tmp_path: Path) -> None:
        def main(args: Any, ctx: Any) -> None:
            import numpy as np

            ctx.report({"loss": np.float32(0.5)}, step=3)

        program = launch(tmp_path, main)
        program.wait(60)
        assert programs.values(program, "loss") == [np.float32(0.5)] * 2


TENSORBOARD = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(f"TensorBoard 2.0 at http://127.0.0.1:{server.server_port}/ (Press CTRL+C to quit)", file=sys.stderr, flush=True)
server.serve_forever()
"""
"""What is asked of it, up at once: the real one takes ten seconds of a core."""


def test_tensorboard_comes_and_goes(tmp_path: Path) -> None:
    from urllib.request import urlopen

    package = tmp_path / "fake" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(TENSORBOARD)
    engine = hy.Local(workers=2, env={"PYTHONPATH": str(package.parent)})
    with launch(tmp_path, programs.idle, tensorboard=True, engine=engine) as program:
        url = program.tensorboard_url(300)
        assert url.startswith("http://127.0.0.1:")
        assert urlopen(url, timeout=60).status == 200
    with pytest.raises(OSError):
        urlopen(url, timeout=2)


@pytest.mark.long
def test_tensorboard_shows_the_summaries_of_a_program(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with launch(tmp_path, programs.summarizes, str(tmp_path / "program"), tensorboard=True) as program:
        assert programs.page_of(program) == ("127.0.0.1", programs.SUMMARIES)


def test_a_tensorboard_that_does_not_start_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tensorboard")
    broken = tmp_path / "broken" / "tensorboard"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('half installed')\n")
    engine = hy.Local(workers=2, env={"PYTHONPATH": str(broken.parent)})
    with launch(tmp_path, programs.idle, tensorboard=True, engine=engine) as program:
        assert program.tensorboard_url(60) == "" == program.tensorboard_url(0)
        assert not program.done
    assert "TensorBoard did not start" in caplog.text and "half installed" in caplog.text


def test_a_failure_after_the_feed_is_fed_again(tmp_path: Path) -> None:
    def main(args: Any, ctx: Any) -> None:
        rows = 0
        for batch in ctx.feed().batches(2):
            rows += len(batch["a"])
            if ctx.restart == 0:
                time.sleep(2)  # the rest waits in this process, and goes with it
                raise ValueError("late")
        ctx.report({"rows": rows})

    program = hy.launch(main, roles={"worker": 1}, max_restarts=1, directory=tmp_path / "program")
    for start in (0, 5):
        program.feed([{"a": n} for n in range(start, start + 5)], end=False)
    program.end_feed()
    assert program.wait(60).status == "completed"
    assert program.summary()["restarts"] == 1 and programs.values(program, "rows") == [10]
