"""XGBoost's quickstart: every round each node adds a tree, and the server puts all of them into one forest."""

import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedXgbBagging
from made_up_ward import by_round, everyone, records, tell

client = ClientApp()
server = ServerApp()
PARAMETERS = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "eval_metric": "auc"}


def forest(message):
    booster = xgb.Booster(params=PARAMETERS)
    booster.load_model(bytearray(message.content["arrays"]["0"].numpy().tobytes()))
    return booster


@client.train()
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    rows = xgb.DMatrix(x, y)
    if message.content["config"]["server-round"] == 1:
        booster = xgb.train(PARAMETERS, rows, num_boost_round=1)
    else:
        booster = forest(message)
        booster.update(rows, booster.num_boosted_rounds())
        booster = booster[booster.num_boosted_rounds() - 1 : booster.num_boosted_rounds()]
    arrays = ArrayRecord([np.frombuffer(booster.save_raw("json"), dtype=np.uint8)])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(x)})}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    said = forest(message).eval_set([(xgb.DMatrix(x, y), "valid")])
    return Message(
        RecordDict({"metrics": MetricRecord({"auc": float(said.split(":")[1]), "num-examples": len(x)})}),
        reply_to=message,
    )


@server.main()
def main(grid, context):
    strategy, empty = (
        FedXgbBagging(**everyone(context)),
        ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]),
    )
    result = strategy.start(
        grid, empty, num_rounds=context.run_config["rounds"], train_config=ConfigRecord({"depth": 3})
    )
    booster = xgb.Booster()
    booster.load_model(bytearray(result.arrays["0"].numpy().tobytes()))
    tell(context, trees=booster.num_boosted_rounds(), coarse=by_round(result.evaluate_metrics_clientapp))
