"""A small convolutional net on scikit-learn's 1,797 handwritten digits, shifted by a pixel as it trains.

pip install hopyard[torch] scikit-learn
hopyard run examples/digits_cnn.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import hopyard as hy


def shifted(images, generator):
    """Each batch moved by up to one pixel, down and to the right; what falls off comes in on the other side (the rim
    is empty). All that is random comes from `generator`, so it is the same wherever the batch is trained."""
    down, right = (int(n) for n in torch.randint(-1, 2, (2,), generator=generator, device=generator.device))
    return images.roll((down, right), dims=(2, 3))


def recipe(config):
    wide = config["channels"]
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, wide, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(wide, 2 * wide, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(2 * wide * 4 * 4, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    return hy.torch.Model(
        net,
        optimizer=optimizer,
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hy.torch.accuracy},
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        batch_size=32,
        augment=shifted if config["augment"] else None,
    )


digits = load_digits()
images = (digits.images[:, None] / 16).astype(np.float32)  # (1797, 1, 8, 8)
data = hy.Dataset.numpy(images, digits.target, validation=0.2, partitions=4)
space = hy.Space(lr=hy.choice([0.02, 0.1]), channels=hy.choice([8, 16]), augment=hy.choice([False, True]))

run = hy.select(recipe, space, data, search=hy.Grid(), epochs=10, metric="val_accuracy", mode="max")
print(f"{run.best.metrics['val_accuracy']:.1%} right with {run.best.config}")
print(run.best.predict(images[:10]).argmax(1), "should be", digits.target[:10])
