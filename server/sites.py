"""Which hospitals take part, and a Grid that shows a strategy sites instead of Flower's nodes.

Flower's node ids are new random numbers in every run, and one simulated node can host several sites. A strategy sees
stable ids (1, 2, ... in order of the sites' names or partitions), and replies come back in that order, so that sums
do not depend on who answered first.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from polyclinic.arrays import MERGED, WEIGHT, filled, size_of, unreadable
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, PolyclinicError, several
from polyclinic.messages import ENROL, RECORD, REFUSED, EnrolRequest, Request

NO_REPLY = 504


@dataclass(frozen=True)
class Site:
    """A hospital taking part: what it said of itself when it enrolled.

    ``budget`` None is unlimited. ``elsewhere``: in how many other hospitals one of its patients may also be, at most.
    ``knows_others``: whether it takes keys for secure sums from hospitals alone that it knows.
    """

    index: int
    name: str
    node: int
    simulated: bool
    schema: Schema
    delta: float
    budget: float | None
    relation: str
    accountant: str
    elsewhere: int = 0
    knows_others: bool = False

    @property
    def id(self) -> int:
        """The node id that strategies see."""
        return self.index + 1

    def told(self) -> dict[str, Any]:
        """What it said and its node, as plain values, without the schema, which all hospitals of a run share."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "schema"}

    @classmethod
    def away(cls, told: Mapping[str, Any], schema: Schema) -> Site:
        """A hospital that took part and cannot be reached."""
        return cls(schema=schema, **told)


Dropped = list[tuple[str, str]]


def enrol(
    grid: Grid, run: str, home: str, wanted: int, timeout: float, only: Collection[int] | None = None
) -> tuple[list[Site], Dropped]:
    """Every hospital that enrols, in a stable order, and those that did not, with their reasons.

    Waits up to ``timeout`` seconds for ``wanted`` real hospitals; simulated ones share whatever nodes there are. ``only``:
    nodes that are asked, None for all. Of real hospitals those that share a name, or whose schema is not that of most, are left
    out. Raises PolyclinicError when none enrols, ConfigError when simulated and real hospitals are mixed.
    """
    deadline = time.monotonic() + timeout
    nodes = _wait_for_nodes(grid, 1, deadline, only)
    good, dropped = _ask(grid, [(nodes[0], EnrolRequest(run=run, site=0, home=home))], timeout)
    if good and good[0][1].get("simulated"):
        total, hosts = int(good[0][1]["sites"]), sorted(nodes)
        good, dropped = _ask(
            grid, [(hosts[i % len(hosts)], EnrolRequest(run=run, site=i, home=home)) for i in range(total)], timeout
        )
    else:
        nodes = _wait_for_nodes(grid, wanted, deadline, only)
        requests = [(node, EnrolRequest(run=run, site=i, home=home)) for i, node in enumerate(nodes)]
        good, dropped = _ask(grid, requests, timeout)
        good.sort(key=lambda found: str(found[1].get("site")))
    if not good:
        raise PolyclinicError(
            f"No hospital could enrol: {several(sorted({why for _, why in dropped}), between='; ') or 'no reply'}"
        )
    if len({bool(record.get("simulated")) for _, record in good}) > 1:
        raise ConfigError(
            "Simulated and real hospitals answered in one run; every node needs a hospital file, or none."
        )
    sites, unread = _sites(good)
    if not sites:
        raise PolyclinicError("No hospital could enrol: what they say of themselves cannot be read.")
    fit, unlike = _alike(sites)
    return fit, dropped + unread + unlike


def enrol_more(
    grid: Grid, run: str, home: str, known: Collection[int], timeout: float
) -> tuple[frozenset[int], list[Site], Dropped]:
    """Of the nodes that are there and were not ``known`` those that answered, the hospitals among them, and why others are none.

    A node that was silent is not among those that answered, and may be asked again.
    """
    nodes = sorted(set(grid.get_node_ids()) - set(known))
    good, dropped = _ask(grid, [(node, EnrolRequest(run=run, site=node, home=home)) for node in nodes], timeout)
    found, unread = _sites(good)
    silent = {name for name, why in dropped if why == _silence(timeout)}
    answered = frozenset(node for node in nodes if f"site {node}" not in silent)
    return answered, found, [(name.replace("site", "node"), why) for name, why in dropped] + unread


def _wait_for_nodes(grid: Grid, needed: int, deadline: float, only: Collection[int] | None) -> list[int]:
    while len(nodes := [node for node in grid.get_node_ids() if only is None or node in only]) < needed:
        if time.monotonic() >= deadline:
            raise PolyclinicError(f"{len(nodes)} nodes connected in time; the run needs {needed}.")
        time.sleep(0.5)
    return nodes


def _ask(grid: Grid, requests: Sequence[tuple[int, Request]], timeout: float) -> tuple[list[tuple[int, Any]], Dropped]:
    """The replies' records in order of the requests, and who gave none."""
    messages = [
        Message(RecordDict({RECORD: request.record()}), node, ENROL, group_id=str(request.site))
        for node, request in requests
    ]
    answers = sorted(grid.send_and_receive(messages, timeout=timeout), key=lambda m: _number(m.metadata.group_id))
    good = [(m.metadata.src_node_id, m.content.get(RECORD, ConfigRecord())) for m in answers if m.has_content()]
    dropped = [(f"site {m.metadata.group_id}", m.error.reason or "no reason given") for m in answers if m.has_error()]
    silent = {str(request.site) for _, request in requests} - {m.metadata.group_id for m in answers}
    return good, dropped + [(f"site {name}", _silence(timeout)) for name in sorted(silent)]


def _silence(timeout: float | None) -> str:
    return f"no reply within {timeout or 0:g} seconds"


def _sites(good: Sequence[tuple[int, Any]]) -> tuple[list[Site], Dropped]:
    """The hospitals, in order, and the nodes whose word cannot be read."""
    schema = cache(lambda text: Schema.from_dict(json.loads(text)))
    sites: list[Site] = []
    dropped: Dropped = []
    for node, record in good:
        try:
            sites.append(_site(len(sites), node, record, schema))
        except (ConfigError, KeyError, TypeError, ValueError):
            dropped.append((f"node {node}", "what it says of itself when it enrols cannot be read"))
    return sites, dropped


def _site(index: int, node: int, record: Mapping[str, Any], schema: Callable[[str], Schema]) -> Site:
    return Site(
        int(record["index"]) if record["simulated"] else index, str(record["site"]), node, bool(record["simulated"]),
        schema(str(record["schema"])),
        float(record["delta"]), float(record["budget"]) or None, str(record["relation"]), str(record["accountant"]),
        int(record["elsewhere"]), bool(record["knows_others"]),
    )  # fmt: skip


def _alike(sites: Sequence[Site]) -> tuple[list[Site], Dropped]:
    """The sites with a name of their own and the schema of most of them (of the first of those, in a tie), and the others."""
    names = Counter(site.name for site in sites)
    own = [site for site in sites if names[site.name] == 1]
    dropped = [(site.name, "another hospital has the same name; every hospital needs its own") for site in sites
               if names[site.name] > 1]  # fmt: skip
    schemas: list[Schema] = []
    for site in own:
        schemas.append(
            next((schema for schema in schemas if schema is site.schema or schema == site.schema), site.schema)
        )
    common = max(schemas, key=lambda schema: sum(schema is other for other in schemas), default=None)
    fit = [site for site, schema in zip(own, schemas, strict=True) if schema is common]
    strangers = [site.name for site, schema in zip(own, schemas, strict=True) if schema is not common]
    return fit, dropped + [
        (name, "its schema is not that of most hospitals; all need the same one") for name in strangers
    ]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


@dataclass(frozen=True)
class Exchange:
    """Replies of one exchange in order of site, and why each other site gave none.

    ``sizes``: bytes of the arrays sent and received, by the site's index.
    """

    replies: list[tuple[Site, Message]]
    dropped: list[tuple[Site, str]] = field(default_factory=list)
    refusals: list[Site] = field(default_factory=list)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """How many dropped out because their policy or budget refused."""
        return len(self.refusals)


class SiteGrid(Grid):
    """The cohort of one exchange, as a Grid.

    ``request`` is added to each site's message under the name ``polyclinic``, ``shared`` arrays under their own names.
    """

    def __init__(
        self, grid: Grid, cohort: Sequence[Site], request: Callable[[Site], Request], shared: Mapping[str, ArrayRecord]
    ) -> None:
        self._grid = grid
        self._cohort = {site.id: site for site in cohort}
        self._request = request
        self._shared = shared

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self._cohort)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages([self._addressed(message)[1] for message in messages])

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [message for _, message in self.exchange(messages, timeout).replies]

    def exchange(self, messages: Iterable[Message], timeout: float | None) -> Exchange:
        """Send each message to its site; a site that errs, or is silent for ``timeout`` seconds, is dropped."""
        addressed = sorted((self._addressed(message) for message in messages), key=lambda pair: pair[0].index)
        by_index = {site.index: site for site, _ in addressed}
        by_node: dict[int, list[Site]] = {}
        for site, _ in addressed:
            by_node.setdefault(site.node, []).append(site)
        found: dict[int, Message] = {}
        for reply in self._grid.send_and_receive([message for _, message in addressed], timeout=timeout):
            index = _number(reply.metadata.group_id)
            hosts = by_node.get(reply.metadata.src_node_id, [])
            sender = by_index.get(index)
            # The SuperLink knows the node by its key; the group is the node's own word, and Flower's errors may have lost it.
            if sender is None or (hosts and sender not in hosts):
                sender = hosts[0] if len(hosts) == 1 else None
            if sender is not None:
                reply.metadata.__dict__["_src_node_id"] = sender.id
                found[sender.index] = reply
        exchange = Exchange([])
        for site, message in addressed:
            reply = found.get(site.index) or Message(Error(NO_REPLY, _silence(timeout)), reply_to=message)
            if reply.has_error():
                if reply.error.code == REFUSED:
                    exchange.refusals.append(site)
                exchange.dropped.append((site, reply.error.reason or "no reason given"))
            elif why := unreadable(reply.content):
                exchange.dropped.append((site, why))
            else:
                if not getattr(self._grid, "merges", False):
                    _speak_for_itself(reply)
                exchange.sizes[site.index] = size_of(message.content), size_of(reply.content)
                exchange.replies.append((site, reply))
        return exchange

    def _addressed(self, message: Message) -> tuple[Site, Message]:
        site = self._cohort[message.metadata.dst_node_id]
        content = filled(RecordDict(), {**message.content, **self._shared, RECORD: self._request(site).record()})
        kind = message.metadata.message_type
        return site, Message(content, site.node, kind, ttl=message.metadata.ttl, group_id=str(site.index))


def _speak_for_itself(reply: Message) -> None:
    """Take back a claim to be merged with others, which no real hospital's reply is."""
    told = reply.content.get(RECORD)
    if isinstance(told, ConfigRecord):
        for claim in (MERGED, WEIGHT):
            told.pop(claim, None)
