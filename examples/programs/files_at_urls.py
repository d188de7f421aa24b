"""TensorFlow opens no hdfs:// itself: `ctx.files` gives it local copies, `ctx.checkpoint` keeps its checkpoints there.

    python examples/programs/files_at_urls.py                                # shards and checkpoints in a folder here
    python examples/programs/files_at_urls.py hdfs://namenode:8020/digits    # … on HDFS (pip install 'hopyard[hdfs]')
    python examples/programs/files_at_urls.py s3://bucket/digits             # … on S3 (pip install 'hopyard[s3]')

Started again on the same place, it goes on from the last checkpoint there.
"""

import json
import sys
from pathlib import Path

import hopyard as hy

PIXELS = 64


def main(args, ctx):
    import tempfile

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def batches(_context):
        """This worker's shards again and again. Each is copied to this host while those before it are read."""
        paths = tf.data.Dataset.from_generator(
            lambda: ctx.files(args["shards"]), output_signature=tf.TensorSpec([], tf.string)
        )
        records = paths.flat_map(lambda path: tf.data.FixedLengthRecordDataset(path, 4 * (PIXELS + 1))).repeat()
        rows = records.map(lambda record: tf.io.decode_raw(record, tf.float32)).shuffle(200, seed=ctx.rank)
        return rows.map(lambda row: (row[:PIXELS], tf.cast(row[PIXELS], tf.int32))).batch(args["batch"])

    data = iter(strategy.distribute_datasets_from_function(batches))
    with strategy.scope():
        first = tf.random_normal_initializer(stddev=0.1, seed=1)
        hidden, bias = tf.Variable(first([PIXELS, 64])), tf.Variable(tf.zeros([64]))
        out, out_bias = tf.Variable(first([64, 10])), tf.Variable(tf.zeros([10]))
    weights = [hidden, bias, out, out_bias]
    saved = tf.train.Checkpoint(weights=weights)

    def logits(rows):
        return tf.nn.relu(rows @ hidden + bias) @ out + out_bias

    @tf.function
    def train(rows, targets):
        def on_each(rows, targets):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits(rows))
                loss = tf.reduce_mean(losses)
            summed = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
            for weight, gradient in zip(weights, summed, strict=True):
                weight.assign_sub(args["rate"] * gradient)
            return loss

        return strategy.reduce("mean", strategy.run(on_each, (rows, targets)), axis=None)

    # Weights are equal on all workers: the first stores them, and all begin with what it has stored.
    folder, began = ctx.restored("worker", 0) or (None, 0)
    if folder is not None:
        saved.read(str(folder / "net"))
    for step in range(began + 1, args["steps"] + 1):
        loss = float(train(*next(data)))
        if step % args["save"] == 0 or step == args["steps"]:
            with tempfile.TemporaryDirectory() as new:
                saved.write(f"{new}/net")  # by each worker, as some variables of a strategy are spread over all
                if ctx.is_chief:
                    ctx.checkpoint(Path(new), step)
            ctx.report({"loss": loss}, step=step)

    with ctx.open(args["test"]) as file:
        rows = tf.reshape(tf.io.decode_raw(file.read(), tf.float32), [-1, PIXELS + 1])
    right = tf.argmax(logits(rows[:, :PIXELS]), 1, tf.int32) == tf.cast(rows[:, PIXELS], tf.int32)
    accuracy = float(tf.reduce_mean(tf.cast(right, tf.float32)))
    ctx.report({"accuracy": accuracy, "began": began}, step=args["steps"])


def write_shards(place, count=6):
    """Write handwritten digits, 64 pixels and the label of each, into some files and one for the test."""
    import fsspec
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = np.column_stack([images / 16, labels]).astype("<f4")
    parts = {f"shards/{number}.bin": rows[number:1500:count] for number in range(count)} | {"test.bin": rows[1500:]}
    for name, part in parts.items():
        with fsspec.open(f"{place}/{name}", "wb", auto_mkdir=True) as file:
            file.write(part.tobytes())


def launch(place, steps=200, save=20, workers=2, max_restarts=1, engine=None, directory=None):
    """What each worker reported last: accuracy on rows held out, and the step that it went on from."""
    program = hy.launch(
        main,
        {"shards": f"{place}/shards/*.bin", "test": f"{place}/test.bin", "steps": steps, "save": save} | SETTINGS,
        roles={"worker": workers},
        until="all",
        max_restarts=max_restarts,
        engine=engine,
        directory=directory,
        store=f"{place}/checkpoints",
        resume=True,
    )
    program.wait(timeout=300)
    return [task["values"] for task in program.summary()["tasks"]]


SETTINGS = {"batch": 50, "rate": 0.3}

if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else str(Path("digits").absolute())
    write_shards(place)
    for worker, told in enumerate(launch(place)):
        print(f"worker {worker}: {json.dumps(told)}")
