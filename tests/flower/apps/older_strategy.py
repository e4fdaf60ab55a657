"""Flower's older interface: a NumPyClient, and a server_fn that gives a strategy of flwr.server."""

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from made_up_ward import FEATURES, loss, records, tell, trained


class Hospital(NumPyClient):
    def __init__(self, partition):
        self.x, self.y = records(partition)

    def fit(self, parameters, config):
        w = trained(parameters[0], self.x, self.y, rate=config["rate"])
        return [w], len(self.x), {"rate": config["rate"]}

    def evaluate(self, parameters, config):
        return loss(parameters[0], self.x, self.y), len(self.x), {"ill": float(self.y.mean())}


class Remembers(FedAvg):
    """Tells after its last round what came out."""

    context = None
    losses = ()

    def aggregate_fit(self, server_round, results, failures):
        self.model, metrics = super().aggregate_fit(server_round, results, failures)
        return self.model, metrics

    def aggregate_evaluate(self, server_round, results, failures):
        found = super().aggregate_evaluate(server_round, results, failures)
        self.losses = (*self.losses, found[0])
        if server_round == self.context.run_config["rounds"]:
            w = parameters_to_ndarrays(self.model)[0]
            tell(self.context, weights=w.tolist(), losses=self.losses, ill=found[1]["ill"])
        return found


def mean_of(pairs):
    total = sum(count for count, _ in pairs)
    return {name: sum(count * said[name] for count, said in pairs) / total for name in pairs[0][1]}


def server_fn(context):
    strategy = Remembers(
        min_available_clients=context.run_config["nodes"], initial_parameters=ndarrays_to_parameters([np.zeros(FEATURES + 1)]),
        on_fit_config_fn=lambda number: {"rate": 0.5 / number}, fit_metrics_aggregation_fn=mean_of,
        evaluate_metrics_aggregation_fn=mean_of,
    )  # fmt: skip
    strategy.context = context
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=context.run_config["rounds"]))


client = ClientApp(client_fn=lambda context: Hospital(int(context.node_config["partition-id"])).to_client())
server = ServerApp(server_fn=server_fn)
