"""One net trained by two workers at once: by all-reduce, and by averaging its parameters now and then.

pip install hopyard[torch] scikit-learn
hopyard run examples/digits_gang.py
"""

import torch
from sklearn.datasets import load_digits

import hopyard as hy


def recipe(config):
    """A small net for images of 8 × 8; it knows nothing of gangs."""
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    metrics = {"accuracy": hy.torch.accuracy}
    return hy.torch.Model(net, optimizer, torch.nn.functional.cross_entropy, metrics, batch_size=config["batch_size"])


images, digits = load_digits(return_X_y=True)
data = hy.Dataset.numpy((images / 16).astype("float32"), digits, validation=0.2, partitions=4)

# Each batch of 64 is split over both workers: the steps are those of one worker.
reduced = hy.fit(
    recipe, {"lr": 0.1, "batch_size": 64}, data, epochs=10, engine=hy.Local(workers=2), parallel=hy.AllReduce()
)
# Each worker has batches of 32 for itself, and both average what they have after every fifth.
averaged = hy.fit(
    recipe, {"lr": 0.1, "batch_size": 32}, data, epochs=10, engine=hy.Local(workers=2), parallel=hy.LocalSGD(every=5)
)
for name, run in {"all-reduce": reduced, "averaging": averaged}.items():
    print(f"{name}: {run.best.metrics['val_accuracy']:.3f} of the validation rows right, epoch {run.best.epoch}")
