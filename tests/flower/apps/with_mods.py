"""Mods around the ClientApp and around one function: of one's own and Flower's, the first outermost."""

from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from made_up_ward import answer, by_round, everyone, records, start, tell, trained, weights

server = ServerApp()


def noted(name):
    def mod(message, context, call_next):
        before = context.state["order"]["names"] if "order" in context.state else ""
        context.state["order"] = ConfigRecord({"names": f"{before}{name}"})
        reply = call_next(message, context)
        reply.content["metrics"][f"{name}-calls"] = context.state["order"]["names"].count(name)
        return reply

    return mod


client = ClientApp()


@client.train(mods=[noted("a"), message_size_mod, arrays_size_mod, noted("b"), fixedclipping_mod])
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    return Message(answer(trained(weights(message.content), x, y), **{"num-examples": len(x)}), reply_to=message)


@server.main()
def main(grid, context):
    # Clipped at the nodes by the mod, with next to no noise.
    strategy = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, **everyone(context)),
        1e-9,
        0.2,
        context.run_config["nodes"],
    )
    result = strategy.start(grid, start(), num_rounds=context.run_config["rounds"])
    tell(context, result.arrays, train=by_round(result.train_metrics_clientapp))
