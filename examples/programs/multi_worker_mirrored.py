"""MultiWorkerMirroredStrategy: every worker has the same weights, gradients are summed between them.

    python examples/programs/multi_worker_mirrored.py            # two workers on this machine
    python examples/programs/multi_worker_mirrored.py --spark    # … on a Spark session of this machine

The loop is one's own: `fit` of Keras 3 does not run under this strategy in TensorFlow 2.21 (keras-team/keras 20585).
Models of Keras 2 (the package tf_keras) and `hopyard.fit` are the other ways.
"""

import json
import sys

import hopyard as hy


def main(args, ctx):
    import tensorflow as tf
    from sklearn.datasets import load_digits

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finds its peers in TF_CONFIG
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")

    def batches(context):
        """Of each worker its own rows; as many batches everywhere, as a worker without one would stop all others."""
        mine = slice(context.input_pipeline_id, 1500, context.num_input_pipelines)
        rows = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine]))
        return rows.shuffle(1500, seed=context.input_pipeline_id).batch(args["batch"], drop_remainder=True)

    data = strategy.distribute_datasets_from_function(batches)
    with strategy.scope():
        first = tf.random_normal_initializer(stddev=0.1, seed=1)
        hidden, bias = tf.Variable(first([64, 64])), tf.Variable(tf.zeros([64]))
        out, out_bias = tf.Variable(first([64, 10])), tf.Variable(tf.zeros([10]))
    weights = [hidden, bias, out, out_bias]

    def logits(rows):
        return tf.nn.relu(rows @ hidden + bias) @ out + out_bias

    @tf.function
    def step(rows, targets):
        def on_each(rows, targets):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits(rows))
                loss = tf.reduce_mean(losses)
            summed = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
            for weight, gradient in zip(weights, summed, strict=True):
                weight.assign_sub(args["rate"] * gradient)
            return loss

        return strategy.reduce("mean", strategy.run(on_each, (rows, targets)), axis=None)

    for epoch in range(args["epochs"]):
        losses = [step(rows, targets) for rows, targets in data]
        loss = float(losses[-1])
        ctx.report({"loss": loss}, step=epoch)

    right = tf.argmax(logits(images[1500:]), 1, tf.int32) == labels[1500:]
    told = {
        "loss": loss,
        "accuracy": float(tf.reduce_mean(tf.cast(right, tf.float32))),
        "replicas": strategy.num_replicas_in_sync,
        "weights": float(sum(tf.reduce_sum(tf.abs(weight)) for weight in weights)),
    }
    (ctx.directory / f"result-{ctx.rank}.json").write_text(json.dumps(told))


def launch(epochs=12, workers=2, engine=None, directory=None):
    """One dict for each worker: loss, accuracy on rows held out, and a sum of the weights, which all have alike."""
    program = hy.launch(
        main,
        {"epochs": epochs, "batch": 50, "rate": 0.3},
        roles={"worker": workers},
        until="all",
        engine=engine,
        directory=directory,
    )
    program.wait(timeout=300)
    return [json.loads(path.read_text()) for path in sorted(program.directory.glob("result-*.json"))]


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=2, cores=1), workers=2) if "--spark" in sys.argv else None
    for worker, told in enumerate(launch(engine=spark)):
        print(f"worker {worker}: {told}")
