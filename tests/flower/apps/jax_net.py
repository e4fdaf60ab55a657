"""JAX's quickstart: a linear model by automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from made_up_ward import answer, by_round, everyone, records, start, tell, weights

client = ClientApp()
server = ServerApp()


def loss(w, x, y):
    logits = x @ w[:-1] + w[-1]
    return jnp.mean(jnp.logaddexp(0, logits) - y * logits)


@client.train()
def train(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    w, slope = jnp.asarray(weights(message.content), jnp.float32), jax.jit(jax.grad(loss))
    for _ in range(5):
        w = w - 0.5 * slope(w, x, y)
    return Message(answer(np.asarray(w, np.float64), **{"num-examples": len(x)}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    x, y = records(int(context.node_config["partition-id"]))
    said = float(loss(jnp.asarray(weights(message.content), jnp.float32), x, y))
    return Message(answer(None, loss=said, **{"num-examples": len(x)}), reply_to=message)


@server.main()
def main(grid, context):
    result = FedAvg(**everyone(context)).start(grid, start(), num_rounds=context.run_config["rounds"])
    tell(context, result.arrays, evaluate=by_round(result.evaluate_metrics_clientapp))
