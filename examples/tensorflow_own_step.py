"""A training step of one's own in TensorFlow: variables, a gradient tape, and an optimizer written by hand.

Here a net of one hidden layer learns scikit-learn's 1,797 handwritten digits by Adam with decoupled weight decay
(Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2; as is usual, the learning rate
scales the decay too). The step is traced once: its signature leaves the number of rows open, so a short last batch is
no reason to trace it again.

Only the first weights are random. A step that draws as well (dropout, say) uses `tf.random.stateless_uniform` and its
like, with a seed made of `batch.seed` and `steps`: TensorFlow's own generators stay behind when a net hops.

    pip install hopyard[tensorflow-cpu] scikit-learn
    hopyard run examples/tensorflow_own_step.py
"""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import hopyard as hy


class Decoupled(hy.Trainable):
    """A classifier; `decay` takes a share of each weight in every step, whatever its gradient is."""

    def __init__(self, columns, classes, config, seed):
        wide = config["width"]
        draw = np.random.default_rng(seed).standard_normal
        shapes = [(columns, wide), (wide,), (wide, classes), (classes,)]
        first = [(2 / n[0]) ** 0.5 * draw(n) if len(n) == 2 else np.zeros(n) for n in shapes]
        self.weights = [tf.Variable(array, dtype=tf.float32) for array in first]
        self.means = [tf.Variable(tf.zeros(shape)) for shape in shapes]  # of the gradient
        self.squares = [tf.Variable(tf.zeros(shape)) for shape in shapes]  # of its square
        self.steps = tf.Variable(0.0)
        self.lr, self.decay = config["lr"], config["decay"]
        self.batch_size = 32

        rows = [tf.TensorSpec((None, columns), tf.float32), tf.TensorSpec((None,), tf.int64)]
        self._train = tf.function(self._step, input_signature=rows)
        self._evaluate = tf.function(self._sums, input_signature=rows)

    def state(self):
        """All that training changes; variables are copied."""
        return {"weights": self.weights, "means": self.means, "squares": self.squares, "steps": self.steps}

    def load(self, tree):
        """Take it back, by copying: the compiled step knows these variables."""
        self.steps.assign(tree["steps"])
        for name in ("weights", "means", "squares"):
            for variable, array in zip(getattr(self, name), tree[name], strict=True):
                variable.assign(array)

    def _outputs(self, x):
        first, bias, second, last = self.weights
        return tf.nn.relu(x @ first + bias) @ second + last

    def _sums(self, x, y):
        outputs = self._outputs(x)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs))
        return loss, tf.math.count_nonzero(tf.argmax(outputs, 1) == y)

    def _step(self, x, y):
        with tf.GradientTape() as tape:
            loss, right = self._sums(x, y)
            mean = loss / tf.cast(tf.shape(x)[0], tf.float32)
        self.steps.assign_add(1.0)
        gradients = tape.gradient(mean, self.weights)
        for weight, gradient, m, v in zip(self.weights, gradients, self.means, self.squares, strict=True):
            m.assign(0.9 * m + 0.1 * gradient)
            v.assign(0.999 * v + 0.001 * gradient**2)
            step = m / (1 - 0.9**self.steps) / (tf.sqrt(v / (1 - 0.999**self.steps)) + 1e-8)
            weight.assign_sub(self.lr * (step + self.decay * weight))
        return loss, right

    def train(self, batch):
        """One step; sums over the rows, and how many."""
        loss, right = self._train(batch.inputs, batch.targets)
        return {"loss": (float(loss), batch.rows), "accuracy": (float(right), batch.rows)}

    def evaluate(self, batch):
        """The same without changing anything."""
        loss, right = self._evaluate(batch.inputs, batch.targets)
        return {"loss": (float(loss), batch.rows), "accuracy": (float(right), batch.rows)}

    def predict(self, batch):
        """Optional: for run.best.predict."""
        return self._outputs(batch.inputs).numpy()


def recipe(config, ctx):
    return Decoupled(ctx.inputs["inputs"][0][0], ctx.classes, config, ctx.seed)


space = hy.Space(lr=hy.loguniform(1e-3, 1e-2), decay=hy.choice([0.0, 0.01, 0.1]), width=hy.choice([32, 64]))


def main(trials=6, epochs=10, engine=None, directory=None):
    digits = load_digits()
    x = (digits.data / 16).astype(np.float32)  # (1797, 64)
    data = hy.Dataset.numpy(x, digits.target, validation=0.2, partitions=4)
    run = hy.select(
        recipe, space, data, search=hy.Random(trials), epochs=epochs, metric="val_loss", mode="min",
        engine=engine, directory=directory,
    )  # fmt: skip
    print(f"{run.best.metrics['val_accuracy']:.1%} right with {run.best.config}")
    print(run.best.predict(x[:10]).argmax(1), "should be", digits.target[:10])
    return run


if __name__ == "__main__":
    main()
