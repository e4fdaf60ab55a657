"""Flower's secure aggregation, by its older workflow, and an older strategy in it."""

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from made_up_ward import FEATURES, records, tell, trained

server = ServerApp()


class Hospital(NumPyClient):
    def __init__(self, partition):
        self.x, self.y = records(partition)

    def fit(self, parameters, config):
        return [trained(parameters[0], self.x, self.y)], len(self.x), {}


class Remembers(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        self.model, metrics = super().aggregate_fit(server_round, results, failures)
        return self.model, metrics


client = ClientApp(
    client_fn=lambda context: Hospital(int(context.node_config["partition-id"])).to_client(), mods=[secaggplus_mod]
)


@server.main()
def main(grid, context):
    strategy = Remembers(fraction_evaluate=0.0, min_available_clients=context.run_config["nodes"],
                         initial_parameters=ndarrays_to_parameters([np.zeros(FEATURES + 1)]))  # fmt: skip
    older = LegacyContext(
        context=context, config=ServerConfig(num_rounds=context.run_config["rounds"]), strategy=strategy
    )
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, timeout=60.0)
    DefaultWorkflow(fit_workflow=secure)(grid, older)
    # Whole numbers are added, of which a unit is worth about 2^-18.
    tell(context, coarse=parameters_to_ndarrays(strategy.model)[0].tolist())
