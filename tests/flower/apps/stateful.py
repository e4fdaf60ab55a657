"""Nodes that keep something in their context between rounds: a personal model and a counter."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from made_up_ward import answer, by_round, everyone, loss, records, start, tell, trained, weights

client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    shared = weights(message.content)
    own = context.state["own"]["w"].numpy() if "own" in context.state else np.zeros_like(shared)
    calls = context.state["count"]["calls"] + 1 if "count" in context.state else 1
    own = trained(0.5 * (own + shared), x, y)
    context.state["own"] = ArrayRecord({"w": Array(own)})
    context.state["count"] = ConfigRecord({"calls": calls})
    return Message(answer(trained(shared, x, y), calls=calls, **{"num-examples": len(x)}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    said = loss(context.state["own"]["w"].numpy(), x, y)
    return Message(answer(None, loss=said, **{"num-examples": len(x)}), reply_to=message)


@server.main()
def main(grid, context):
    result = FedAvg(**everyone(context)).start(grid, start(), num_rounds=context.run_config["rounds"] + 1)
    tell(context, result.arrays, train=by_round(result.train_metrics_clientapp),
         evaluate=by_round(result.evaluate_metrics_clientapp))  # fmt: skip
