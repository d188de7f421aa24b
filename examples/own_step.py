"""A training step of one's own: anything with these four methods can be a trial.

Here a linear model is fitted by sharpness-aware minimization (Foret et al., "Sharpness-Aware Minimization for
Efficiently Improving Generalization", ICLR 2021, algorithm 1), which needs two gradients a step.

    pip install hopyard[torch]
    hopyard run examples/own_step.py
"""

import numpy as np
import torch

import hopyard as hy


class Sharpness(hy.Trainable):
    """A linear classifier; each step climbs by `rho` first, and goes down by the gradient found there."""

    def __init__(self, columns, classes, config):
        self.net = torch.nn.Linear(columns, classes)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=config["lr"], momentum=0.9)
        self.rho = config["rho"]
        self.batch_size = 64

    def state(self):
        """All that training changes."""
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, tree):
        """Take it back, by copying."""
        self.net.load_state_dict(tree["net"])
        self.optimizer.load_state_dict(tree["optimizer"])

    def _loss(self, batch):
        outputs = self.net(torch.from_numpy(batch.inputs))
        targets = torch.from_numpy(batch.targets)
        right = (outputs.argmax(1) == targets).sum()
        return torch.nn.functional.cross_entropy(outputs, targets), right

    def train(self, batch):
        """One step; sums over the rows, and how many."""
        loss, right = self._loss(batch)
        loss.backward()
        weights = list(self.net.parameters())
        with torch.no_grad():
            norm = torch.stack([weight.grad.norm() for weight in weights]).norm() + 1e-12
            climb = [self.rho * weight.grad / norm for weight in weights]
            torch._foreach_add_(weights, climb)
        self.optimizer.zero_grad()
        self._loss(batch)[0].backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, climb)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": (float(loss.detach()) * batch.rows, batch.rows), "accuracy": (float(right), batch.rows)}

    def evaluate(self, batch):
        """The same without changing anything."""
        with torch.no_grad():
            loss, right = self._loss(batch)
        return {"loss": (float(loss) * batch.rows, batch.rows), "accuracy": (float(right), batch.rows)}

    def predict(self, batch):
        """Optional: for run.best.predict."""
        with torch.no_grad():
            return self.net(torch.from_numpy(batch.inputs)).numpy()


def recipe(config, ctx):
    return Sharpness(ctx.inputs["inputs"][0][0], ctx.classes, config)


stream = np.random.default_rng(0)
centres = 2 * stream.standard_normal((5, 20))
y = stream.integers(0, 5, 4000)
x = (centres[y] + 3 * stream.standard_normal((4000, 20))).astype(np.float32)

data = hy.Dataset.numpy(x, y, validation=0.25, partitions=4)
space = hy.Space(lr=hy.loguniform(1e-3, 1e-1), rho=hy.choice([0.0, 0.05, 0.2]))
run = hy.select(recipe, space, data, search=hy.Random(6), epochs=3, metric="val_loss", mode="min")
print(run.best.config, run.best.metrics)
