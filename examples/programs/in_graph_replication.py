"""Replication in one graph: a chief has the weights and a replica of the net on each worker, and feeds all of them.

    python examples/programs/in_graph_replication.py            # gradients of all replicas are averaged for each step
    python examples/programs/in_graph_replication.py --async    # … are applied when a replica has them
    python examples/programs/in_graph_replication.py --spark    # on a Spark session of this machine

Between-graph replication, where each worker has a graph and a session of its own, is `ps_tutorial.py`.
"""

import json
import sys
import threading

import hopyard as hy


def main(args, ctx):
    import tensorflow.compat.v1 as tf
    from sklearn.datasets import load_digits

    tf.disable_v2_behavior()
    server = tf.train.Server(tf.train.ClusterSpec(ctx.peers), job_name=ctx.role, task_index=ctx.index)
    if ctx.role != "chief":
        server.join()

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    workers = len(ctx.peers["worker"])

    def net(rows):
        with tf.variable_scope("net", reuse=tf.AUTO_REUSE), tf.device("/job:ps/task:0"):
            hidden, output = tf.get_variable("hidden", [64, 64]), tf.get_variable("output", [64, 10])
        return tf.nn.relu(rows @ hidden) @ output

    replicas = []
    for worker in range(workers):
        with tf.device(f"/job:worker/task:{worker}"):
            rows, targets = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
            logits = net(rows)
            loss = tf.losses.sparse_softmax_cross_entropy(targets, logits)
            replicas.append((rows, targets, logits, loss))
    with tf.device("/job:ps/task:0"):
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(0.01)
        gradients = [optimizer.compute_gradients(loss, tf.trainable_variables()) for *_, loss in replicas]
        averages = [
            (tf.add_n([pair[0] for pair in pairs]) / workers, pairs[0][1]) for pairs in zip(*gradients, strict=True)
        ]
        together = optimizer.apply_gradients(averages, step)
        alone = [optimizer.apply_gradients(pairs, step) for pairs in gradients]
    rows, targets, logits, _ = replicas[0]
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), targets), tf.float32))

    def batch(worker, number):
        """Rows of its own for each worker; the last 297 are held out."""
        mine = slice(worker, 1500, workers)
        at = number * 50 % (1500 // workers)
        rows, targets, *_ = replicas[worker]
        return {rows: images[mine][at : at + 50], targets: labels[mine][at : at + 50]}

    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer())

        def drive(worker):
            """Train one replica, in a thread of its own."""
            for number in range(args["steps"]):
                session.run(alone[worker], batch(worker, number))

        if args["asynchronous"]:
            threads = [threading.Thread(target=drive, args=(worker,)) for worker in range(workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for number in range(args["steps"]):
                feeds = {}
                for worker in range(workers):
                    feeds |= batch(worker, number)
                session.run(together, feeds)
        whole, trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
        reached, _ = session.run([step, [loss for *_, loss in replicas]], _all(batch, workers), whole, trace)
        found = session.run(accuracy, {rows: images[1500:], targets: labels[1500:]})
    used = sorted({device.device for device in trace.step_stats.dev_stats if "/job:worker" in device.device})
    told = {"steps": int(reached), "accuracy": float(found), "devices": used}
    (ctx.directory / "result.json").write_text(json.dumps(told))


def _all(batch, workers):
    """Return a batch for each worker."""
    return {name: value for worker in range(workers) for name, value in batch(worker, 0).items()}


def launch(steps=200, asynchronous=False, engine=None, directory=None):
    """Steps, accuracy on rows held out, and the devices of the replicas."""
    program = hy.launch(
        main,
        {"steps": steps, "asynchronous": asynchronous},
        roles={"chief": 1, "worker": 2, "ps": 1},
        until="chief",
        engine=engine,
        directory=directory,
    )
    program.wait(timeout=300)
    return json.loads((program.directory / "result.json").read_text())


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=4, cores=1), workers=4) if "--spark" in sys.argv else None
    print(launch(asynchronous="--async" in sys.argv, engine=spark))
