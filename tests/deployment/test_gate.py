"""Flower's own SuperLink application, asked from afar and from its own machine."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from flwr.superlink import extensions, main

from polyclinic.deployment.flower.superlink import guard

FAR, ADMIN = "203.0.113.9", "10.1.0.7"


@pytest.fixture(scope="module")
def superlink() -> Iterator[FastAPI]:
    own = extensions.get_middleware
    guard("10.1.0.0/24 2001:db8::/32")
    try:
        yield main.create_app()
    finally:
        extensions.get_middleware = own


def asked(app: FastAPI, client: str, path: str, **headers: str) -> int:
    async def ask() -> int:
        transport = httpx.ASGITransport(app, client=(client, 5000), raise_app_exceptions=False)
        # The URL's host becomes the address at which the server was reached.
        async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.1:8000", headers=headers) as session:
            return (await session.post(path)).status_code

    return asyncio.run(ask())


def test_from_afar_nothing_is_open_but_the_nodes_own_calls(superlink: FastAPI) -> None:
    known = {context.route.path for context in main.iter_route_contexts(superlink.routes)}
    assert len([path for path in known if path.startswith("/v1/")]) > 50
    for path in sorted(known):
        refused = asked(superlink, FAR, path) == 403
        assert refused == (not path.startswith("/v1/fleet/") and path != "/health"), path


@pytest.mark.parametrize(
    "path", ["/v1/fleet/../control/start-run", "/v1//control/start-run", "/V1/control/start-run", "/docs", "/"]
)
def test_no_spelling_of_a_path_gets_past(superlink: FastAPI, path: str) -> None:
    assert asked(superlink, FAR, path) in (403, 404)
    assert asked(superlink, FAR, "/v1/fleet/%2e%2e/control/start-run") in (403, 404)


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", ADMIN, "2001:db8::5"])
def test_the_machine_itself_and_named_networks_may_ask(superlink: FastAPI, client: str) -> None:
    assert asked(superlink, client, "/v1/control/list-runs") != 403


@pytest.mark.parametrize("client", [FAR, "10.1.1.7", "2001:db9::5", "not an address", "0.0.0.0"])
def test_a_header_lends_nobody_an_address(superlink: FastAPI, client: str) -> None:
    lent = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "Host": "127.0.0.1"}
    assert asked(superlink, client, "/v1/control/list-runs", **lent) == 403
