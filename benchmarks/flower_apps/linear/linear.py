"""A Flower app whose nodes have little to do, so that it is the framework's time that shows: a linear model by NumPy."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


def loaded(message: Message, context: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(int(context.node_config["partition-id"])).normal(size=(500, 30))
    return message.content.array_records["arrays"]["w"].numpy(), x, (x[:, 0] + x[:, 1] > 0).astype(float)


@client.train()
def train(message: Message, context: Context) -> Message:
    w, x, y = loaded(message, context)
    for _ in range(10):
        w = w - float(message.content.config_records["config"]["lr"]) * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(x)
    content = {"arrays": ArrayRecord({"w": Array(w)}), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    w, x, y = loaded(message, context)
    metrics = MetricRecord({"accuracy": float(((x @ w > 0) == y).mean()), "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    arrays, rounds = ArrayRecord({"w": Array(np.zeros(30))}), int(context.run_config["rounds"])
    begun = time.perf_counter()
    result = FedAvg().start(grid, arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
    seconds = time.perf_counter() - begun
    accuracy = result.evaluate_metrics_clientapp[rounds]["accuracy"]
    Path(str(context.run_config["out"])).write_text(json.dumps({"seconds": seconds, "accuracy": accuracy}))
