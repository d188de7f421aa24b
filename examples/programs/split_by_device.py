"""One model, too large for one worker, split over two by `tf.device`; a chief holds the graph and drives.

    python examples/programs/split_by_device.py            # a chief and two workers on this machine
    python examples/programs/split_by_device.py --spark    # … on a Spark session of this machine

The workers serve whatever the chief's graph puts on them; activations and gradients go from one to the other directly.
"""

import json
import sys

import hopyard as hy


def main(args, ctx):
    import tensorflow.compat.v1 as tf
    from sklearn.datasets import load_digits

    tf.disable_v2_behavior()
    cluster = tf.train.ClusterSpec(ctx.peers)
    server = tf.train.Server(cluster, job_name=ctx.role, task_index=ctx.index)
    if ctx.role == "worker":
        server.join()

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    rows, targets = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
    with tf.device("/job:worker/task:0"):
        lower = tf.get_variable("lower", [64, 64])
        middle = tf.nn.relu(rows @ lower)
    with tf.device("/job:worker/task:1"):
        upper = tf.get_variable("upper", [64, 10])
        logits = middle @ upper
        loss = tf.losses.sparse_softmax_cross_entropy(targets, logits)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), targets), tf.float32))
    # Gradients are computed where their operations are, weights are changed where they live.
    train = tf.train.AdamOptimizer(0.01).minimize(loss, colocate_gradients_with_ops=True)

    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer())
        for step in range(args["steps"]):
            at = step * 50 % 1500  # the last 297 rows are held out
            _, value = session.run([train, loss], {rows: images[at : at + 50], targets: labels[at : at + 50]})
            if step % 50 == 0:
                ctx.report({"loss": float(value)}, step=step)
        held_out = {rows: images[1500:], targets: labels[1500:]}
        whole, trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
        found = session.run(accuracy, held_out, options=whole, run_metadata=trace)
    used = sorted({device.device for device in trace.step_stats.dev_stats if "/job:worker" in device.device})
    (ctx.directory / "result.json").write_text(
        json.dumps({"loss": float(value), "accuracy": float(found), "devices": used})
    )


def launch(steps=300, engine=None, directory=None):
    """Loss, accuracy on rows held out, and the devices that computed it."""
    program = hy.launch(
        main,
        {"steps": steps},
        roles={"chief": 1, "worker": 2},
        until="chief",
        engine=engine,
        directory=directory,
    )
    program.wait(timeout=300)
    return json.loads((program.directory / "result.json").read_text())


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=3, cores=1), workers=3) if "--spark" in sys.argv else None
    print(launch(engine=spark))
