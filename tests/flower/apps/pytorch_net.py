"""PyTorch's quickstart: a network, batches that are drawn anew, FedAvg, and evaluation at the nodes."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from made_up_ward import by_round, everyone, records, tell
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

client = ClientApp()
server = ServerApp()


def net():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def loaded(message, context):
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = records(int(context.node_config["partition-id"]))
    return model, TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


@client.train()
def train(message, context):
    model, rows = loaded(message, context)
    # As users do, the global generator; the server must not see it.
    torch.manual_seed(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
    total = 0.0
    for x, y in DataLoader(rows, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        error = cross_entropy(model(x), y)
        error.backward()
        optimizer.step()
        total += error.item()
    metrics = MetricRecord({"train_loss": total, "num-examples": len(rows)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    model, rows = loaded(message, context)
    x, y = rows.tensors
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean()
    return Message(
        RecordDict({"metrics": MetricRecord({"accuracy": float(right), "num-examples": len(y)})}), reply_to=message
    )


@server.main()
def main(grid, context):
    torch.manual_seed(1)
    arrays = ArrayRecord(net().state_dict())
    from flwr.app import ConfigRecord

    result = FedAvg(**everyone(context)).start(
        grid, arrays, num_rounds=context.run_config["rounds"], train_config=ConfigRecord({"lr": 0.1})
    )
    # The nodes seeded theirs; this goes on from the server's own.
    tell(context, result.arrays, drawn=torch.rand(1).item(), train=by_round(result.train_metrics_clientapp),
         evaluate=by_round(result.evaluate_metrics_clientapp))  # fmt: skip
