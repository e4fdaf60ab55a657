"""Flower's central differential privacy around a strategy, whose noise comes of NumPy's global generator."""

import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from made_up_ward import answer, everyone, records, start, tell, trained, weights

client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    np.random.seed(7)
    x, y = records(int(context.node_config["partition-id"]))
    w = trained(weights(message.content), x, y) + 0.01 * np.random.normal(size=x.shape[1] + 1)
    return Message(answer(w, **{"num-examples": len(x)}), reply_to=message)


@server.main()
def main(grid, context):
    np.random.seed(3)
    inner = FedAvg(fraction_evaluate=0.0, **everyone(context))
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 0.5, context.run_config["nodes"])
    result = strategy.start(grid, start(), num_rounds=context.run_config["rounds"])
    tell(context, result.arrays, next=float(np.random.random()))
