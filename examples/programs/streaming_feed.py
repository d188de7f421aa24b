"""A stream trains a model: micro-batches are fed to the program as they come, while it runs.

    python examples/programs/streaming_feed.py            # ten lists of rows, from this process
    python examples/programs/streaming_feed.py --spark    # Structured Streaming: rows go from its tasks to the workers

Each worker keeps a model of its own of what came to it, a line through 4 columns, and says what it has learned.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import hopyard as hy

SLOPES = np.array([1.0, -2.0, 3.0, 0.5])
"""What is to be found in the rows."""
SCHEMA = "x array<double>, y double"


def main(args, ctx):
    slopes, seen, errors = np.zeros(4), 0, []
    for batch in ctx.feed().batches(args["batch"]):  # ends when the stream does
        wrong = batch["x"] @ slopes - batch["y"]
        slopes -= args["rate"] * batch["x"].T @ wrong / len(wrong)
        seen += len(wrong)
        errors.append(float(np.mean(wrong**2)))
        ctx.report({"error": errors[-1], "rows": seen}, step=len(errors))
    told = {"rows": seen, "errors": [*errors[:1], *errors[-1:]], "slopes": slopes.tolist()}
    (ctx.directory / f"result-{ctx.rank}.json").write_text(json.dumps(told))


def micro_batch(number, rows=400):
    """Rows as they might come from a sensor."""
    stream = np.random.default_rng(number)
    x = stream.normal(size=(rows, 4))
    y = x @ SLOPES + 0.01 * stream.normal(size=rows)
    return [{"x": list(map(float, row)), "y": float(value)} for row, value in zip(x, y, strict=True)]


def stream_lists(program, count):
    """From here."""
    for number in range(count):
        program.feed(micro_batch(number), end=False)  # returns when the workers have the rows


def stream_spark(program, spark, count):
    """From Spark: files come into a folder, two of them are a micro-batch; its rows go by Spark's tasks."""
    with tempfile.TemporaryDirectory() as folder:
        rows_in = Path(folder, "rows")
        rows_in.mkdir()
        for number in range(count):
            lines = "\n".join(map(json.dumps, micro_batch(number)))
            (rows_in / f"{number}.json").write_text(lines)
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).json(f"file:{rows_in}")
        query = (
            rows.writeStream.foreachBatch(lambda frame, number: program.feed(frame.repartition(2), end=False) and None)
            .option("checkpointLocation", f"file:{folder}/progress")
            .trigger(availableNow=True)  # a stream that goes on: .trigger(processingTime="5 seconds")
            .start()
        )
        query.awaitTermination()


def launch(count=10, workers=2, engine=None, spark=None, directory=None):
    """One dict for each worker: the rows it saw, its error in the first and the last batch, what it learned."""
    program = hy.launch(
        main,
        {"batch": 20, "rate": 0.1},
        roles={"worker": workers},
        until="all",
        engine=engine,
        directory=directory,
    )
    with program:
        if spark is None:
            stream_lists(program, count)
        else:
            stream_spark(program, spark, count)
        program.end_feed()
        program.wait(timeout=300)
    return [json.loads(path.read_text()) for path in sorted(program.directory.glob("result-*.json"))]


if __name__ == "__main__":
    session = hy.spark.session(executors=2, cores=1) if "--spark" in sys.argv else None
    # The stream's own tasks need the cores, too.
    engine = None if session is None else hy.Spark(session, workers=2, release_cores=True)
    for worker, told in enumerate(launch(engine=engine, spark=session)):
        print(f"worker {worker}: {told}")
