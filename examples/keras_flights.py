"""Which of 327,346 flights come late? A few Keras nets for a table, and what to do with the best of them.

Less than a quarter of the flights come late, so in training each of them weighs as much as three that do not. The AUC
that decides is that of all validation flights, not a mean over batches.

pip install hopyard[demo,tensorflow-cpu]
hopyard run examples/keras_flights.py
"""

import keras
import pyarrow.parquet as pq

import hopyard as hy
from hopyard.demo import KINDS, NUMBERS, flights


def recipe(config, ctx):
    net = keras.Sequential([keras.Input(ctx.inputs["inputs"][0])])  # as wide as the encoded table
    for _ in range(config["depth"]):
        net.add(keras.layers.Dense(config["width"], activation="relu"))
        net.add(keras.layers.Dropout(config["dropout"]))
    net.add(keras.layers.Dense(1, activation="sigmoid"))
    net.compile(
        optimizer=keras.optimizers.Adam(config["lr"]),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return hy.keras.Model(net, batch_size=512, class_weight={0: 1.0, 1: 3.0})


space = hy.Space(
    lr=hy.loguniform(1e-4, 1e-2),
    width=hy.choice([32, 64, 128]),
    depth=hy.choice([1, 2]),
    dropout=hy.choice([0.0, 0.2]),
)


def main(table=None, trials=6, epochs=2, engine=None, directory=None):
    """`table`: a Parquet file like that of `hopyard.demo.flights`, which is the default."""
    table = table or flights()
    data = hy.Dataset.parquet(
        table,
        features=[*NUMBERS, *KINDS],
        label="late",
        encode=dict.fromkeys(KINDS, "one-hot"),
        standardize=True,
        validation=0.2,
        partitions=8,
    )
    run = hy.select(
        recipe, space, data, search=hy.Random(trials), epochs=epochs, metric="val_auc", mode="max",
        engine=engine, directory=directory,
    )  # fmt: skip
    best = run.best
    print(f"AUC {best.metrics['val_auc']:.3f} with {best.config}")

    net = best.model()  # a compiled keras.Model
    net.summary()

    some = pq.read_table(table).slice(0, 5)  # rows as they are in the file: encoded here as in training
    for flight, late in zip(some.to_pylist(), best.predict(some)[:, 0], strict=True):
        left = f"{flight['carrier']} to {flight['dest']}, left {flight['dep_delay']:+d} minutes"
        print(f"{left}: late with {late:.0%}, {'was' if flight['late'] else 'was not'}")

    folder = best.save(run.directory / "best")
    again = hy.load_model(folder)  # all that predicting needs; `keras.saving.load_model` opens {folder}/model.keras too
    assert (again.predict(some) == best.predict(some)).all()
    print(f"saved in {folder}")
    return run


if __name__ == "__main__":
    main()
