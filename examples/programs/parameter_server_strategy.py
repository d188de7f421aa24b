"""ParameterServerStrategy: a chief hands steps to workers, weights live on parameter servers; it can be started again.

    python examples/programs/parameter_server_strategy.py            # a chief, two workers, one parameter server
    python examples/programs/parameter_server_strategy.py --spark    # … on a Spark session of this machine

Workers and parameter servers only serve, and never return: `until="chief"` ends them. Before that, a process of any of
them that dies is a failure of the program: `max_restarts=` starts all of it again, and the chief goes on from its last
checkpoint. With `restart_scope="task"` as well, only the one that died is started again, at its old address.
"""

import json
import sys

import hopyard as hy


def main(args, ctx):
    import tensorflow as tf
    from sklearn.datasets import load_digits

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in {"worker", "ps"}:
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        ).join()

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        first = tf.random_normal_initializer(stddev=0.1, seed=1)
        hidden, bias = tf.Variable(first([64, 64])), tf.Variable(tf.zeros([64]))
        out, out_bias = tf.Variable(first([64, 10])), tf.Variable(tf.zeros([10]))
        steps = tf.Variable(0, dtype=tf.int64)
    weights = [hidden, bias, out, out_bias]

    def logits(rows):
        return tf.nn.relu(rows @ hidden + bias) @ out + out_bias

    def batches():
        rows = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))  # the last 297 are held out
        return rows.shuffle(1500).repeat().batch(50)

    @tf.function
    def step(iterator):
        rows, targets = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits(rows)))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(args["rate"] * gradient)
        steps.assign_add(1)
        return loss

    named = {name: weight for name, weight in zip(("hidden", "bias", "out", "out_bias"), weights, strict=True)}
    kept = tf.train.CheckpointManager(
        tf.train.Checkpoint(steps=steps, **named), str(ctx.directory / "checkpoints"), max_to_keep=2
    )
    kept.restore_or_initialize()
    began = int(steps.numpy())

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    while int(steps.numpy()) < args["steps"]:
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(args["save"])]
        coordinator.join()
        reached, loss = int(steps.numpy()), float(losses[-1].fetch())
        ctx.report({"loss": loss}, step=reached)
        kept.save(checkpoint_number=reached)
        if ctx.restart == 0 and args["fail"] is not None and reached >= args["fail"]:
            raise RuntimeError(f"a failure on purpose at step {reached}")

    right = tf.argmax(logits(images[1500:]), 1, tf.int32) == labels[1500:]
    told = {
        "began": began,
        "steps": reached,
        "loss": loss,
        "accuracy": float(tf.reduce_mean(tf.cast(right, tf.float32))),
        "device": hidden.device,
    }
    (ctx.directory / "result.json").write_text(json.dumps(told))


def launch(steps=300, workers=2, fail=None, max_restarts=0, restart_scope="program", engine=None, directory=None):
    """At which step the last attempt began, and what it came to. `fail`: at this step the first attempt breaks off."""
    program = hy.launch(
        main,
        {"steps": steps, "save": 50, "rate": 0.2, "fail": fail},
        roles={"chief": 1, "worker": workers, "ps": 1},
        until="chief",
        max_restarts=max_restarts,
        restart_scope=restart_scope,
        engine=engine,
        directory=directory,
    )
    program.wait(timeout=300)
    return json.loads((program.directory / "result.json").read_text())


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=4, cores=1), workers=4) if "--spark" in sys.argv else None
    print(launch(fail=150, max_restarts=1, engine=spark))
