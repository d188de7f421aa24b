"""TensorFlow's tutorial of ParameterServerStrategy with a ClusterCoordinator, on the digits of scikit-learn."""

import os

import tensorflow as tf
from sklearn.datasets import load_digits

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(
    cluster_resolver, variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32"), labels.astype("int32")

with strategy.scope():
    initializer = tf.random_normal_initializer(stddev=0.1, seed=1)
    hidden, hidden_bias = tf.Variable(initializer([64, 64])), tf.Variable(tf.zeros([64]))
    output, output_bias = tf.Variable(initializer([64, 10])), tf.Variable(tf.zeros([10]))
variables = [hidden, hidden_bias, output, output_bias]


def model(x):
    return tf.nn.relu(x @ hidden + hidden_bias) @ output + output_bias


@tf.function
def step_fn(iterator):
    x, y = next(iterator)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.2 * gradient)
    return loss


@tf.function
def per_worker_dataset_fn():
    def dataset_fn(_):
        return tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500])).shuffle(1500).repeat().batch(50)

    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
num_epochs, steps_per_epoch = 8, 30
for _ in range(num_epochs):
    for _ in range(steps_per_epoch):
        loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()

correct = tf.argmax(model(images[1500:]), 1, tf.int32) == labels[1500:]
accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
print(f"chief 0: loss {float(loss.fetch()):.4f}, accuracy {float(accuracy):.4f}")
