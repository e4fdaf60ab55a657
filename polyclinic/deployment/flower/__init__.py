"""Every change that Polyclinic makes to Flower 1.41's programs while they run; nothing else in Polyclinic touches their insides.

Each is made by ``patch`` and says why it is there. A test holds what Flower has in each place to what it had in 1.41, so that a
new Flower is looked at before it is allowed.

- ``cli.utils``: ``CliClientHttpInterceptor``, by ``cli.main``. Flower's open command line signs nothing that it asks.
- ``supercore.superexec.run_superexec``: ``get_executor`` and ``time``, by ``executor.main``. Flower starts a new Python for each
  message and polls at fixed pauses.
- ``supercore.inflatable.inflatable_utils``: ``pull_objects``, by ``executor.run_client``. A ClientApp waits a second or three for
  a message's parts, which its node is about to have.
- ``superlink.extensions``: ``get_middleware``, by ``superlink.guard``. Whoever reaches the port could submit runs.
- ``superlink.grid.http_grid``: ``pull_objects``, by ``pauses.pull_soon`` in a ServerApp. It waits a second for the parts of each
  reply, one reply after another.
- ``superlink.servicer.runtime.runtime_handlers``: ``acquire_task``, by ``superlink.queue``. All runs that were submitted go at
  once.
- ``superlink.routers.fleet.node_auth``: ``authenticate_node``, by ``refusals.explain``. A wrong clock is a bare 401.
- ``superlink.servicer.fleet.fleet_handlers``: ``activate_node``, by ``refusals.explain``. A key that is refused is a bare 412.
- ``supernode.fleet_http_connection``: ``HeartbeatSender``, by ``supernode.note_heartbeats``. No port of a node says whether it is
  connected.
- ``supernode.fleet_http_connection``: ``NodeAuthHttpInterceptor``, by ``supernode.explain_end``. A node that is refused ends as
  if it had been asked to.
- ``supernode.fleet_http_connection``: ``make_simple_http_retry_invoker``, by ``supernode.persist``. A node gives up where a line
  ends within TLS's handshake.
- ``supernode.nodestate.in_memory_nodestate.InMemoryNodeState``: ``finish_task``, by ``supernode.hasten``. The answer of a
  ClientApp that died is waited for without end.
- ``supernode.start_client_internal``: ``_pull_and_store_message`` and ``_verify_fab``, by ``supernode.judge_bundles``. A node
  runs whatever code it is sent.
- ``supernode.start_client_internal``: ``_push_messages``, by ``supernode.withhold``. An answer that waits to be fetched leaves
  although the hospital has paused or stopped the run meanwhile.
- ``supernode.start_client_internal``: ``_pull_and_store_message``, ``_push_messages``, ``subprocess`` and ``time``, by
  ``supernode.hasten``. Flower polls at fixed pauses, and its executor is the slow one.
- ``supernode.start_client_internal``: ``pull_objects``, by ``pauses.pull_soon``. A node waits a second for a message's parts,
  which the ServerApp is about to send.
- ``supernode.start_client_internal``: ``_pull_and_store_message`` and ``_push_messages``, by ``turns.take_turns``. Nodes of one
  machine would all begin at once.

Upstream, each module has its file below https://github.com/adap/flower/tree/main/framework/py/flwr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def patch(owner: Any, name: str, change: Callable[[Any], Any], purpose: str) -> None:
    """Puts ``change`` of what Flower's module or class has under a name in its place.

    Ends the process where Flower has no function or class of that name: without the change it must not run.

    Args:
        owner: Flower's module or class.
        name: The attribute that is replaced.
        change: Makes the new function or class of the original one.
        purpose: What the change is for, for the message.
    """
    original = getattr(owner, name, None)
    if not callable(original):
        sys.exit(f"This flwr has no place for {purpose}; install flwr 1.41.")
    setattr(owner, name, change(original))
