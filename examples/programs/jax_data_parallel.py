"""JAX with one mesh over the devices of all processes: each holds its rows, gradients are summed by `psum`.

    python examples/programs/jax_data_parallel.py            # two workers on this machine, by gloo
    python examples/programs/jax_data_parallel.py --spark    # … on a Spark session of this machine

JAX asks the kinds of cluster that it knows who this process is; a Hopyard program is one of them.
"""

import json
import sys

import hopyard as hy


def main(args, ctx):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from sklearn.datasets import load_digits

    jax.distributed.initialize()
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    by_rows, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())

    def loss_of(weights, rows, targets):
        logits = jax.nn.relu(rows @ weights["hidden"] + weights["bias"]) @ weights["out"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1).mean()

    def on_each(weights, rows, targets):
        loss, gradients = jax.value_and_grad(loss_of)(weights, rows, targets)
        count = jax.lax.psum(1, "rows")
        loss, gradients = jax.tree.map(lambda value: jax.lax.psum(value, "rows") / count, (loss, gradients))
        return jax.tree.map(lambda weight, gradient: weight - args["rate"] * gradient, weights, gradients), loss

    rows, none = PartitionSpec("rows"), PartitionSpec()
    step = jax.jit(
        jax.shard_map(on_each, mesh=mesh, in_specs=(none, rows, rows), out_specs=(none, none), check_vma=False)
    )
    stream = np.random.default_rng(1)  # the same in each process
    weights = {
        "hidden": stream.normal(0, 0.1, (64, 64)).astype("float32"),
        "bias": np.zeros(64, "float32"),
        "out": stream.normal(0, 0.1, (64, 10)).astype("float32"),
    }
    weights = jax.device_put(weights, everywhere)
    mine = np.arange(ctx.rank, 1500, ctx.world_size)  # the last 297 are held out
    shuffled = np.random.default_rng(ctx.rank)
    for epoch in range(args["epochs"]):
        for drawn in np.split(shuffled.permutation(mine)[: len(mine) // 50 * 50], len(mine) // 50):
            parts = [jax.make_array_from_process_local_data(by_rows, whole[drawn]) for whole in (images, labels)]
            weights, loss = step(weights, *parts)
        ctx.report({"loss": float(loss)}, step=epoch)

    ours = jax.tree.map(lambda weight: np.asarray(weight.addressable_data(0)), weights)
    found = np.maximum(images[1500:] @ ours["hidden"] + ours["bias"], 0) @ ours["out"]
    told = {
        "loss": float(loss),
        "accuracy": float((found.argmax(1) == labels[1500:]).mean()),
        "devices": jax.device_count(),
        "weights": float(sum(np.abs(weight).sum() for weight in ours.values())),
    }
    (ctx.directory / f"result-{ctx.rank}.json").write_text(json.dumps(told))
    jax.distributed.shutdown()


def launch(epochs=12, workers=2, engine=None, directory=None):
    """One dict for each worker: loss over all rows, accuracy on rows held out, and a sum of the weights."""
    program = hy.launch(
        main,
        {"epochs": epochs, "rate": 0.3},
        roles={"worker": workers},
        until="all",
        engine=engine,
        directory=directory,
    )
    program.wait(timeout=300)
    return [json.loads(path.read_text()) for path in sorted(program.directory.glob("result-*.json"))]


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=2, cores=1), workers=2) if "--spark" in sys.argv else None
    for worker, told in enumerate(launch(engine=spark)):
        print(f"worker {worker}: {told}")
