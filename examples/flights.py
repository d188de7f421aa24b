"""Which of 327,346 flights come late? The whole program; `hopyard demo` is the same with a report behind it.

pip install hopyard[demo]
hopyard run examples/flights.py
"""

import torch

import hopyard as hy
from hopyard.demo import KINDS, NUMBERS, flights


def recipe(config, ctx):
    (columns,) = ctx.inputs["inputs"][0]
    net = torch.nn.Sequential(
        torch.nn.Linear(columns, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 2)
    )
    return hy.torch.Model(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hy.torch.accuracy, "auc": hy.torch.AUC()},
    )


space = hy.Space(lr=hy.loguniform(1e-4, 1e-1), width=hy.choice([32, 64, 128]), batch_size=hy.choice([512, 1024]))
data = hy.Dataset.parquet(
    flights(),
    features=[*NUMBERS, *KINDS],
    label="late",
    encode=dict.fromkeys(KINDS, "one-hot"),
    standardize=True,
    validation=0.2,
    partitions=8,
)
run = hy.select(recipe, space, data, search=hy.Random(8), epochs=2, metric="val_loss", mode="min")
print(run.best.config, run.best.metrics)
