"""The best of several nets for handwritten digits, on hosts of your own: no scheduler, no disk that they share.

pip install hopyard[torch] scikit-learn     # on each host, and here
hopyard doctor --hosts a,b:4                # do they answer, what do they have?
python examples/hosts.py a b:4 user@c       # by ssh; behind a colon, how many workers

The shell loop that this replaces is in docs/hosts.md.
"""

import sys

import torch
from sklearn.datasets import load_digits

import hopyard as hy


def recipe(config):
    net = torch.nn.Sequential(
        torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
    )
    return hy.torch.Model(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hy.torch.accuracy},
        batch_size=32,
    )


def main(hosts, trials=8, epochs=5, ssh="ssh"):
    """Gives the run."""
    digits = load_digits()
    data = hy.Dataset.numpy((digits.data / 16).astype("float32"), digits.target, validation=0.2, partitions=4)
    return hy.select(
        recipe,
        hy.Space(lr=hy.loguniform(1e-3, 1e-1), width=hy.choice([32, 128])),
        data,
        search=hy.Random(trials),
        epochs=epochs,
        metric="val_accuracy",
        mode="max",
        engine=hy.Hosts(hosts, ssh=ssh),  # the same bits as hy.Local() gives
    )


if __name__ == "__main__":
    run = main(sys.argv[1:])
    print(f"{run.best.metrics['val_accuracy']:.1%} right with {run.best.config}")
