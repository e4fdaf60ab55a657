"""A Flower app after PyTorch's quickstart: one epoch of SGD at every node, FedAvg, and evaluation after each round."""

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

client = ClientApp()
server = ServerApp()


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(30, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32), torch.nn.Tanh(),
                               torch.nn.Linear(32, 2))  # fmt: skip


def loaded(message: Message, context: Context) -> tuple[torch.nn.Module, TensorDataset]:
    model = net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x = torch.randn(500, 30, generator=generator)
    return model, TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())


@client.train()
def train(message: Message, context: Context) -> Message:
    model, rows = loaded(message, context)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content.config_records["config"]["lr"]))
    for x, y in DataLoader(rows, batch_size=50, shuffle=True):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(rows)})}
    return Message(RecordDict(content), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, rows = loaded(message, context)
    x, y = rows.tensors
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": right, "num-examples": len(y)})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    arrays, rounds = ArrayRecord(net().state_dict()), int(context.run_config["rounds"])
    begun = time.perf_counter()
    result = FedAvg().start(grid, arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
    seconds = time.perf_counter() - begun
    accuracy = result.evaluate_metrics_clientapp[rounds]["accuracy"]
    Path(str(context.run_config["out"])).write_text(json.dumps({"seconds": seconds, "accuracy": accuracy}))
