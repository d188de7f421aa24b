"""Which flights come late? A join in Spark SQL, a selection on the executors, predictions back in a DataFrame.

pip install 'hopyard[spark-local,torch,demo]'
python examples/spark_flights.py                                           # a session of its own, Java included
spark-submit --master spark://… examples/spark_flights.py /shared/folder   # a cluster, and a folder that all share
"""

import sys
from pathlib import Path

import torch
from pyspark.sql.functions import mean

import hopyard as hy
from hopyard.demo import KINDS, NUMBERS, WEATHER, tables


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
        batch_size=512,
    )


JOINED = """
    SELECT carrier, f.origin, dest, dep_delay, month, hour, distance, arr_delay,
           weekday(make_date(year, month, day)) AS weekday, CAST(arr_delay > 15 AS int) AS late, {weather}
    FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
    WHERE arr_delay IS NOT NULL
"""


def main(spark, shared=None, share=1.0, trials=4, epochs=2):
    """Gives the run and the DataFrame with predictions.

    Args:
        spark: a session.
        shared: a folder that driver and executors share; None: this host's cache, where all of them are here.
        share: of the flights.
    """
    flights, weather = (spark.read.parquet(f"file:{path}") for path in tables(shared and Path(shared)))
    flights.sample(share, seed=1).createOrReplaceTempView("flights")
    means = weather.selectExpr(*[f"avg({name}) {name}" for name in WEATHER]).first()
    hours = weather.groupBy("origin", "time_hour")
    hours.agg(*[mean(name).alias(name) for name in WEATHER]).createOrReplaceTempView("weather")
    table = spark.sql(JOINED.format(weather=", ".join(f"coalesce(w.{name}, {means[name]}) {name}" for name in WEATHER)))

    data = hy.Dataset.spark(
        table,
        features=[*NUMBERS, *KINDS],
        label="late",
        encode=dict.fromkeys(KINDS, "one-hot"),
        standardize=True,
        validation=0.2,
        partitions=4,
        path=shared and f"{shared}/partitions",
    )
    run = hy.select(
        recipe,
        hy.Space(lr=hy.loguniform(1e-4, 1e-1), width=hy.choice([32, 64, 128])),
        data,
        search=hy.Random(trials),
        epochs=epochs,
        metric="val_auc",
        mode="max",
        engine=hy.Spark(spark, workers=2),
    )
    return run, hy.spark.predict(run, table)


if __name__ == "__main__":
    session = hy.spark.session(executors=2, cores=1)  # the one that is there, if there is one
    run, predicted = main(session, *sys.argv[1:2])
    print(run.best.config, run.best.metrics)
    predicted.select("carrier", "origin", "dest", "dep_delay", "late", "prediction").show(5)
    session.stop()
