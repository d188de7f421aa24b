"""TensorFlow's tutorial of MultiWorkerMirroredStrategy with a custom training loop, on the digits of scikit-learn."""

import json
import os

import tensorflow as tf
from sklearn.datasets import load_digits

tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
task_type, task_id = tf_config["task"]["type"], tf_config["task"]["index"]
per_worker_batch_size = 50
global_batch_size = per_worker_batch_size * num_workers
num_epochs = 8

strategy = tf.distribute.MultiWorkerMirroredStrategy()
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32"), labels.astype("int32")


def dataset_fn(input_context):
    dataset = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    dataset = dataset.shuffle(1500, seed=1)
    return dataset.batch(input_context.get_per_replica_batch_size(global_batch_size), drop_remainder=True)


with strategy.scope():
    initializer = tf.random_normal_initializer(stddev=0.1, seed=1)
    hidden, hidden_bias = tf.Variable(initializer([64, 64])), tf.Variable(tf.zeros([64]))
    output, output_bias = tf.Variable(initializer([64, 10])), tf.Variable(tf.zeros([10]))
    variables = [hidden, hidden_bias, output, output_bias]
    multi_worker_dataset = strategy.distribute_datasets_from_function(dataset_fn)


def model(x):
    return tf.nn.relu(x @ hidden + hidden_bias) @ output + output_bias


@tf.function
def train_epoch(iterator, num_steps):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            per_example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, variables)
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.3 * gradient)
        return loss

    total_loss = 0.0
    for _ in tf.range(num_steps):
        per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
        total_loss += strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)
    return total_loss / tf.cast(num_steps, tf.float32)


for _ in range(num_epochs):
    train_loss = train_epoch(iter(multi_worker_dataset), tf.constant(1500 // global_batch_size))

correct = tf.argmax(model(images[1500:]), 1, tf.int32) == labels[1500:]
accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
print(f"{task_type} {task_id}: loss {float(train_loss):.4f}, accuracy {float(accuracy):.4f}")
