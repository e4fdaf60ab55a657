"""Why a coordinator refuses a node, in one sentence with the next step, in the logs of both.

Flower 1.41 answers with a bare 401 or 412, and a node that gets 401 ends as if somebody had asked it to. Here the coordinator
adds its reason to the answer (``explain``), and the node ends with the sentence (``RefusalInterceptor``).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from logging import WARNING
from typing import Any

import httpx

from polyclinic.deployment.certificates import certificate_problem, failed_verification
from polyclinic.deployment.flower import patch

# What the coordinator says of a key; the node has the sentences.
UNREGISTERED, REVOKED, CONNECTED = "unregistered", "revoked", "connected"

_REGISTER = "send node.pub to its operator, who runs `polyclinic coordinator register FOLDER node.pub --name NAME`"
_REKEY = f"`polyclinic hospital rekey FOLDER` makes a new key: {_REGISTER}"
_AGAIN = (
    "the coordinator still counts this node as connected, as it does for a minute after a node was killed; try again in a "
    "minute, and see that no second node has this hospital's key"
)
_KEYS = {
    UNREGISTERED: f"this hospital's key is not registered at the coordinator: {_REGISTER}",
    REVOKED: f"the registration of this hospital's key was revoked at the coordinator; {_REKEY}",
    CONNECTED: _AGAIN,
}


class RefusalInterceptor:
    """Signs a node's calls by Flower's ``signing``, and calls ``end`` with the reason when the coordinator refuses the node."""

    def __init__(self, signing: Any, end: Callable[[str], object]) -> None:
        self._signing, self._end = signing, end

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        try:
            response: httpx.Response = self._signing.intercept(context, call_next)
        except httpx.TransportError as error:
            if refused := failed_verification(error):
                self._end(f"The node ends: the coordinator cannot be trusted, for {certificate_problem(refused)}.")
            raise
        leaving = context.rpc_method.endswith("/DeactivateNode")  # it ends already
        if not leaving and (why := refusal(response, datetime.now(UTC))):
            self._end(f"The node ends: {why}.")
        return response


def refusal(response: httpx.Response, now: datetime) -> str | None:
    """Why an answer to a node's call ends the node, None where it does not; ``now``: by the node's clock."""
    from flwr.supercore.error import ApiErrorCode, FlowerError

    if response.status_code == httpx.codes.UNAUTHORIZED:
        ahead = (
            (now - parsedate_to_datetime(response.headers["date"])).total_seconds() if "date" in response.headers else 0
        )
        return f"{clock_difference(ahead)} the coordinator's, and {SET}" if is_refused(ahead) else _KEYS[REVOKED]
    if not response.is_error:
        return None
    error = FlowerError.from_json(response.text)
    if error is None or error.code != ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return None
    return _KEYS.get(error.public_details or "", f"{_KEYS[UNREGISTERED]}; or {_AGAIN}")


def registration(coordinator: str, ca: bytes, key: bytes) -> str | None:
    """Why the coordinator would refuse a node with this private key, None where it would not.

    It is asked to activate the node with a heartbeat that none may have: it looks for the key first, then changes
    nothing.

    Args:
        coordinator: Its address, HOST:PORT.
        ca: The certificate of its authority, in PEM.
        key: The node's private key, in OpenSSH's form.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private: Any = load_ssh_private_key(key, None)
    public = private.public_key()
    signing: list[Any] = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(private, public)]
    try:
        with FleetHttpClient.from_server_address(coordinator, False, ca, signing) as client:
            client.ActivateNode(ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=0.0))
    except httpx.HTTPStatusError as error:
        answer = FlowerError.from_json(error.response.text)
        if answer is None or answer.code != ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
            return refusal(error.response, datetime.now(UTC)) or f"it answers with {error.response.status_code}"
    return None


def explain(node_auth: Any, handlers: Any) -> None:
    """Let Flower's two modules that check a node say why they refuse it: a wrong clock in the log, a key in the answer."""
    purpose = "the reasons of a refusal"
    patch(node_auth, "authenticate_node", lambda authenticate: partial(_authenticate_or_log, authenticate), purpose)
    patch(handlers, "activate_node", lambda activate: partial(_activate_or_explain, activate), purpose)


def _authenticate_or_log(authenticate: Callable[[Any], None], request: Any) -> None:
    from fastapi import HTTPException
    from flwr.common.logger import log

    try:
        authenticate(request)
    except HTTPException:
        if sentence := _clock_sentence(request):
            log(WARNING, "%s", sentence)
        raise


def _activate_or_explain(activate: Callable[..., Any], request: Any, state: Any) -> Any:
    from flwr.supercore.error import ApiErrorCode, FlowerError

    try:
        return activate(request=request, state=state)
    except FlowerError as error:
        if error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            error.public_details = _standing(state, request.public_key)
        raise


def _standing(state: Any, public_key: bytes) -> str:
    if state.get_node_id_by_public_key(public_key) is not None:
        return CONNECTED
    return REVOKED if any(node.public_key == public_key for node in state.get_node_info()) else UNREGISTERED


def _clock_sentence(request: Any) -> str | None:
    """The sentence where a registered node's clock is what is wrong with its call; strangers get no line of the log."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
    from flwr.superlink.dependencies.linkstate import get_linkstate

    try:
        timestamp = request.headers[TIMESTAMP_HEADER]
        public_key, signature = (
            b64decode(request.headers[name], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        ahead = (datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()
        state = get_linkstate(request)
        node = state.get_node_id_by_public_key(public_key)
        if node is None or not is_refused(ahead):
            return None
        if not verify_signature(bytes_to_public_key(public_key), timestamp.encode("ascii"), signature):
            return None
    except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error):
        return None
    [described] = state.get_node_info(node_ids=[node])
    return f"The node {described.name!r} is refused: its clock is {_describe(ahead)} this machine's, and {SET}."


def is_refused(ahead: float) -> bool:
    """Whether Flower refuses a node whose clock is so many seconds ahead; a second less, for its times have no fractions."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    return not -(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE) + 1 < ahead < SYSTEM_TIME_TOLERANCE - 1


def clock_difference(ahead: float) -> str:
    """Goes on with "the coordinator's"."""
    return f"this machine's clock is {_describe(ahead)}"


def _describe(ahead: float) -> str:
    return f"about {abs(ahead):,.0f} seconds {'ahead of' if ahead > 0 else 'behind'}"


SET = (
    "Flower takes a node at most 5 seconds ahead and 305 behind: set the clock that is wrong, and have it kept by a "
    "time server (NTP)"
)
