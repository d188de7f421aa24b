"""A program as it was written for TensorFlowOnSpark: nothing of it says Hopyard but its first line.

    python examples/programs/tensorflowonspark_digits.py --cluster_size 2 --tensorboard
    spark-submit examples/programs/tensorflowonspark_digits.py --cluster_size 4 --num_ps_tasks 1 --epochs 3

Each worker trains a softmax on the digits that Spark feeds to it; the chief's is exported as a SavedModel.
"""

import argparse
import sys

import hopyard.compat

hopyard.compat.install()  # from here on `tensorflowonspark` is Hopyard's

from pyspark import SparkConf, SparkContext  # noqa: E402
from tensorflowonspark import TFCluster, TFNode  # noqa: E402


def main_fun(args, ctx):
    import numpy as np
    import tensorflow as tf

    if ctx.job_name == "ps":
        tf.distribute.Server(ctx.cluster_spec, job_name="ps", task_index=ctx.task_index).join()
    weights = tf.Variable(tf.zeros((64, 10)))
    rate, losses = 0.5, []

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights))
        weights.assign_sub(rate * tape.gradient(loss, weights))
        return loss

    feed = TFNode.DataFeed(ctx.mgr)
    while not feed.should_stop():
        batch = feed.next_batch(64)
        if batch:
            x = np.array([row[0] for row in batch], np.float32) / 16
            losses.append(float(step(tf.constant(x), tf.constant([row[1] for row in batch]))))
    print(
        f"{ctx.job_name} {ctx.task_index}: {len(losses)} batches, loss {losses[0]:.2f} to {losses[-1]:.2f}", flush=True
    )
    assert losses[-1] < losses[0] / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster_size", type=int, default=2)
    parser.add_argument("--num_ps_tasks", type=int, default=0)
    parser.add_argument("--num_gpus", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--tensorboard", action="store_true")
    args = parser.parse_args()
    conf = SparkConf().setAppName("digits")
    if not conf.contains("spark.master"):
        conf.setMaster(f"local-cluster[{args.cluster_size},1,1024]").set(
            "spark.executorEnv.PYSPARK_PYTHON", sys.executable
        )
    sc = SparkContext(conf=conf)
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = sc.parallelize(list(zip(digits.data.tolist(), digits.target.tolist(), strict=True)), 8)
    cluster = TFCluster.run(
        sc,
        main_fun,
        args,
        args.cluster_size,
        num_ps=args.num_ps_tasks,
        tensorboard=args.tensorboard,
        input_mode=TFCluster.InputMode.SPARK,
        log_dir="digits-logs" if args.tensorboard else None,
        master_node="chief",
    )
    if args.tensorboard:
        print("TensorBoard:", cluster.tensorboard_url())
    cluster.train(rows, args.epochs)
    cluster.shutdown()
    sc.stop()
    print("done")


if __name__ == "__main__":
    main()
