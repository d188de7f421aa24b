"""The parameter-server tutorial of TensorFlow 1: `tf.train.Server`, and roles that are told by environment variables.

    python examples/programs/ps_tutorial.py                 # workers apply their gradients when they have them
    python examples/programs/ps_tutorial.py --sync          # … together, by SyncReplicasOptimizer
    python examples/programs/ps_tutorial.py --spark         # on a Spark session of this machine

The first worker is the chief. Parameter servers never return by themselves; `until="workers"` ends them.
"""

import json
import os
import sys

import hopyard as hy


def main(args, ctx):
    import tensorflow.compat.v1 as tf
    from sklearn.datasets import load_digits

    tf.disable_v2_behavior()
    job, index = os.environ["JOB_NAME"], int(os.environ["TASK_INDEX"])
    hosts = {"ps": os.environ["PS_HOSTS"].split(","), "worker": os.environ["WORKER_HOSTS"].split(",")}
    workers = len(hosts["worker"])
    cluster = tf.train.ClusterSpec(hosts)
    # A worker talks to the parameter servers and to itself. Without the filters, a session also waits for workers that
    # have not started yet, and for those that have ended already.
    config = tf.ConfigProto(device_filters=["/job:ps", f"/job:{job}/task:{index}"])
    server = tf.train.Server(cluster, job_name=job, task_index=index, config=config)
    if job == "ps":
        server.join()

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    mine = slice(index, 1500, workers)  # each worker has rows of its own; the last 297 are held out

    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
        step = tf.train.get_or_create_global_step()
        rows, targets = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
        hidden_weights = tf.get_variable("hidden_weights", [64, 64])
        hidden_bias = tf.get_variable("hidden_bias", [64], initializer=tf.zeros_initializer())
        weights, bias = tf.get_variable("weights", [64, 10]), tf.get_variable("bias", [10])
        logits = tf.nn.relu(rows @ hidden_weights + hidden_bias) @ weights + bias
        loss = tf.losses.sparse_softmax_cross_entropy(targets, logits)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), targets), tf.float32))
        optimizer = tf.train.AdamOptimizer(0.01)
        hooks = [tf.train.StopAtStepHook(last_step=args["steps"])]
        if args["sync"]:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, workers, total_num_replicas=workers)
            hooks.append(optimizer.make_session_run_hook(is_chief=index == 0))
        train = optimizer.minimize(loss, global_step=step)

    if index > 0:  # a worker that comes before the chief has set up the weights; stock: it looks again after 30 seconds
        ready = tf.report_uninitialized_variables(tf.global_variables())
        tf.train.SessionManager(ready_op=ready, recovery_wait_secs=1).wait_for_session(server.target, config).close()
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=index == 0,
        checkpoint_dir=str(ctx.directory / "checkpoints"),
        save_checkpoint_steps=50,  # what a restart goes on from; stock: every ten minutes
        hooks=hooks,
        config=config,
        log_step_count_steps=None,
        stop_grace_period_secs=5,  # a synchronous chief sits in a queue until then; stock: 120
    ) as session:
        drawn, began = 0, None
        while not session.should_stop():
            at = drawn * 50 % 1500 // workers
            _, reached, value, right = session.run(
                [train, step, loss, accuracy], {rows: images[mine][at : at + 50], targets: labels[mine][at : at + 50]}
            )
            drawn, began = drawn + 1, int(reached) if began is None else began
            if drawn % 20 == 0:
                ctx.report({"loss": float(value), "accuracy": float(right)}, step=int(reached))
    told = {"began": began, "steps": drawn, "reached": int(reached), "loss": float(value), "accuracy": float(right)}
    (ctx.directory / f"result-{index}.json").write_text(json.dumps(told))


def launch(steps=300, sync=False, engine=None, directory=None):
    """One dict for each worker: where it began and what it reached, in how many steps it took part, its last loss and
    accuracy."""
    program = hy.launch(
        main,
        {"steps": steps, "sync": sync},
        roles={"worker": 2, "ps": 1},
        until="workers",
        engine=engine,
        directory=directory,
    )
    program.wait(timeout=300)
    return [json.loads(path.read_text()) for path in sorted(program.directory.glob("result-*.json"))]


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=3, cores=1), workers=3) if "--spark" in sys.argv else None
    for worker, told in enumerate(launch(sync="--sync" in sys.argv, engine=spark)):
        print(f"worker {worker}: {told}")
