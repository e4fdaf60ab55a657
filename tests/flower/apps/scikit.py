"""scikit-learn's quickstart: logistic regression that goes on from the mean of coefficients."""

import warnings

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from made_up_ward import FEATURES, by_round, everyone, records, tell
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

client = ClientApp()
server = ServerApp()


def model(message):
    found = LogisticRegression(max_iter=1, warm_start=True)
    found.classes_ = np.array([0, 1])
    found.coef_, found.intercept_ = (message.content["arrays"][name].numpy().copy() for name in ("coef", "intercept"))
    return found


@client.train()
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    found = model(message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.fit(x, y)
    arrays = ArrayRecord({"coef": Array(found.coef_), "intercept": Array(found.intercept_)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(x)})}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    said = MetricRecord({"loss": float(log_loss(y, model(message).predict_proba(x))), "num-examples": len(x)})
    return Message(RecordDict({"metrics": said}), reply_to=message)


@server.main()
def main(grid, context):
    zeros = ArrayRecord({"coef": Array(np.zeros((1, FEATURES))), "intercept": Array(np.zeros(1))})
    result = FedAvg(**everyone(context)).start(grid, zeros, num_rounds=context.run_config["rounds"])
    tell(context, result.arrays, evaluate=by_round(result.evaluate_metrics_clientapp))
