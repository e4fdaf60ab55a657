"""The hospital of the Flower peer, as in Flower's own Opacus and PyTorch examples, with the Message API."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import TensorDataset

from benchmarks.common.tables import PATIENTS, tables
from benchmarks.peers.opacus_loop import train

app = ClientApp()
warnings.filterwarnings("ignore")


@lru_cache(maxsize=1)
def _all(sites: int) -> tuple[np.ndarray, np.ndarray]:
    """Made once in each worker process, as Flower's examples cache their FederatedDataset."""
    torch.set_num_threads(1)
    return tables(sites, PATIENTS, 0)


@app.train()
def fit(message: Message, context: Context) -> Message:
    """One local epoch; with privacy where the message's config says so."""
    x, y = _all(int(context.node_config["num-partitions"]))
    site = int(context.node_config["partition-id"])
    data = TensorDataset(torch.from_numpy(x[site]), torch.from_numpy(y[site]))
    arrays = message.content.array_records["arrays"]
    dp = bool(message.content.config_records["config"]["dp"])
    trained = train(dict(arrays.to_torch_state_dict()), data, dp)
    metrics = MetricRecord({"num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)
