"""FedAdam with a learning rate that falls, and the server's own evaluation."""

from flwr.app import Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam
from made_up_ward import answer, by_round, everyone, loss, records, start, tell, trained, weights

client = ClientApp()
server = ServerApp()


@client.train("careful")
def careful(message, context):
    return train(message, context)


@client.train()
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    w = trained(weights(message.content), x, y, rate=message.content["config"]["lr"])
    return Message(answer(w, **{"num-examples": len(x)}), reply_to=message)


class Falls(FedAdam):
    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.5 / server_round
        return super().configure_train(server_round, arrays, config, grid)


@server.main()
def main(grid, context):
    def evaluate(number, arrays):
        return MetricRecord({"loss": loss(arrays["w"].numpy(), *records(99))})

    strategy = Falls(fraction_evaluate=0.0, **everyone(context), eta=0.05)
    result = strategy.start(grid, start(), num_rounds=context.run_config["rounds"], evaluate_fn=evaluate)
    tell(context, result.arrays, evaluate=by_round(result.evaluate_metrics_serverapp))
