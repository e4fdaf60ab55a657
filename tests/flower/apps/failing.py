"""A node that fails in every other round, and a strategy that looks at the errors."""

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from made_up_ward import answer, everyone, records, start, tell, trained, weights

client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    partition = int(context.node_config["partition-id"])
    if partition == 1 and message.content["config"]["server-round"] % 2 == 0:
        raise RuntimeError("no power in the ward")
    x, y = records(partition)
    return Message(answer(trained(weights(message.content), x, y), **{"num-examples": len(x)}), reply_to=message)


class Counts(FedAvg):
    codes = ()

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.codes = (*self.codes, *(reply.error.code for reply in replies if reply.has_error()))
        assert all("no power in the ward" in reply.error.reason for reply in replies if reply.has_error())
        return super().aggregate_train(server_round, replies)


@server.main()
def main(grid, context):
    strategy = Counts(fraction_evaluate=0.0, **everyone(context))
    result = strategy.start(grid, start(), num_rounds=context.run_config["rounds"] + 2)
    tell(context, result.arrays, codes=strategy.codes)
