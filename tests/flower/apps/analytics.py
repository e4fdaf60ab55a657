"""Federated analytics without a strategy: queries of two kinds, pushed and pulled by hand."""

import time

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from made_up_ward import answer, records, tell

client = ClientApp()
server = ServerApp()


@client.query()
def count(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    return Message(answer(None, rows=len(x), ill=int(y.sum())), reply_to=message)


@client.query("histogram")
def histogram(message, context):
    x, _ = records(int(context.node_config["partition-id"]))
    counts, _ = np.histogram(x[:, message.content["ask"]["column"]], bins=4, range=(-2, 2))
    return Message(answer(None, **{f"bin-{i}": int(value) for i, value in enumerate(counts)}), reply_to=message)


@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.5)
    found = {}
    for kind in ("query", "query.histogram"):
        asked = [Message(RecordDict({"ask": ConfigRecord({"column": 1})}), node, kind, group_id="1") for node in nodes]
        waiting, replies = set(grid.push_messages(asked)), []
        while waiting:
            replies += (arrived := list(grid.pull_messages(waiting)))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            time.sleep(0.1 if waiting else 0)
        for reply in replies:
            assert reply.metadata.src_node_id in nodes and reply.metadata.message_type == kind
            for name, value in reply.content["metrics"].items():
                found[name] = found.get(name, 0) + value
    tell(context, **found)
