"""What both apps do around their work: a lifespan at the server, and one around each message at a node."""

from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from made_up_ward import answer, by_round, everyone, records, start, tell, trained, weights

client = ClientApp()
server = ServerApp()


@client.lifespan()
def around(context):
    entered = context.state["life"]["entered"] + 1 if "life" in context.state else 1
    left = context.state["life"]["left"] if "life" in context.state else 0
    context.state["life"] = ConfigRecord({"entered": entered, "left": left})
    yield
    context.state["life"] = ConfigRecord({"entered": entered, "left": left + 1})


@client.train()
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    life = context.state["life"]
    said = {"num-examples": len(x), "entered": life["entered"], "left": life["left"]}
    return Message(answer(trained(weights(message.content), x, y), **said), reply_to=message)


@server.lifespan()
def whole(context):
    context.state["begun"] = ConfigRecord({"at": context.run_config["rounds"]})
    yield


@server.main()
def main(grid, context):
    result = FedAvg(fraction_evaluate=0.0, **everyone(context)).start(
        grid, start(), num_rounds=context.state["begun"]["at"]
    )
    tell(context, result.arrays, train=by_round(result.train_metrics_clientapp))
