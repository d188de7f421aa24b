"""A convolutional Keras net on scikit-learn's 1,797 handwritten digits: the recipe returns the compiled model as it is.

The batch size comes from the config; the first 1,500 digits are there to train and to choose by, and the others, which
no trial has seen, to say how good the choice is.

pip install hopyard[tensorflow-cpu] scikit-learn
hopyard run examples/keras_digits.py
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import hopyard as hy


def recipe(config):
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(config["channels"], 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2 * config["channels"], 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    net.compile(
        optimizer=keras.optimizers.Adam(config["lr"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


configs = [
    {"lr": 1e-3, "channels": 8, "batch_size": 32},
    {"lr": 1e-3, "channels": 16, "batch_size": 32},
    {"lr": 3e-3, "channels": 8, "batch_size": 32},
    {"lr": 3e-3, "channels": 16, "batch_size": 32},
    {"lr": 3e-3, "channels": 16, "batch_size": 64},
    {"lr": 1e-2, "channels": 16, "batch_size": 64},
]


def main(configs=configs, epochs=10, engine=None, directory=None):
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)  # (1797, 8, 8, 1)
    data = hy.Dataset.numpy(images[:1500], digits.target[:1500], validation=0.2, partitions=4)
    held_out = hy.Dataset.numpy(images[1500:], digits.target[1500:])

    run = hy.select(
        recipe, None, data, search=hy.Configs(configs), epochs=epochs, metric="val_accuracy", mode="max",
        engine=engine, directory=directory,
    )  # fmt: skip
    for trial in run.trials:
        print(f"{trial.metrics['val_accuracy']:.1%} after epoch {trial.epoch}, its best, with {trial.config}")
    print(f"{run.best.evaluate(held_out)['accuracy']:.1%} of the held-out digits right with {run.best.config}")
    print(run.best.predict(images[1500:1510]).argmax(1), "should be", digits.target[1500:1510])
    return run


if __name__ == "__main__":
    main()
