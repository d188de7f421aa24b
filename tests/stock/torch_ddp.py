"""Torch's tutorial of DistributedDataParallel for torchrun, on the digits of scikit-learn."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.snapshot_path = snapshot_path
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path)
            self.model.load_state_dict(snapshot["model"])
            self.epochs_run = snapshot["epochs_run"]
        self.model = DDP(self.model)

    def run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for source, targets in self.train_data:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        return total.item() / len(self.train_data) / dist.get_world_size()

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            loss = self.run_epoch(epoch)
            if self.local_rank == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs_run": epoch + 1}, self.snapshot_path)
        return loss


def main(total_epochs, batch_size):
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    train_set = TensorDataset(images[:1500], labels[:1500])
    train_data = DataLoader(train_set, batch_size=batch_size, sampler=DistributedSampler(train_set))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    trainer = Trainer(model, train_data, optimizer, "snapshot.pt")
    loss = trainer.train(total_epochs)
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    print(f"rank {trainer.global_rank}: loss {loss:.4f}, accuracy {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total_epochs", default=5, type=int)
    parser.add_argument("--batch_size", default=50, type=int)
    args = parser.parse_args()
    main(args.total_epochs, args.batch_size)
