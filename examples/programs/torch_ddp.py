"""DistributedDataParallel as under torchrun: `init_process_group()` finds rank, size and address in the environment.

    python examples/programs/torch_ddp.py            # two workers on this machine, by gloo
    python examples/programs/torch_ddp.py --spark    # … on a Spark session of this machine

On GPUs: roles={"worker": hy.Role(4, gpus=1)}, backend "nccl", and `torch.cuda.set_device(ctx.local_rank)`.
"""

import json
import sys

import hopyard as hy


def main(args, ctx):
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    rows = TensorDataset(images[:1500], labels[:1500])  # the last 297 are held out
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=50, sampler=sampler)

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args["epochs"]):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item(), 1])
        dist.all_reduce(total)
        ctx.report({"loss": float(total[0] / total[1])}, step=epoch)

    with torch.no_grad():
        right = (net(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    told = {
        "loss": float(total[0] / total[1]),
        "accuracy": float(right),
        "size": dist.get_world_size(),
        "weights": float(sum(weight.abs().sum() for weight in net.parameters())),
    }
    (ctx.directory / f"result-{ctx.rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def launch(epochs=6, workers=2, engine=None, directory=None):
    """One dict for each worker: loss over all rows, accuracy on rows held out, and a sum of the weights."""
    program = hy.launch(
        main, {"epochs": epochs}, roles={"worker": workers}, until="all", engine=engine, directory=directory
    )
    program.wait(timeout=300)
    return [json.loads(path.read_text()) for path in sorted(program.directory.glob("result-*.json"))]


if __name__ == "__main__":
    spark = hy.Spark(hy.spark.session(executors=2, cores=1), workers=2) if "--spark" in sys.argv else None
    for worker, told in enumerate(launch(engine=spark)):
        print(f"worker {worker}: {told}")
