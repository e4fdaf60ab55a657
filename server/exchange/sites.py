"""The hospitals that take part, and a Grid that shows a strategy sites instead of Flower's nodes.

Flower's node ids are new random numbers in every run, and one simulated node can host several sites. A strategy sees
stable ids (1, 2, ... in order of the sites' names or partitions). Replies come back in that order, so that sums do not
depend on who answered first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import Accountant, Relation
from polyclinic.privacy.ledger.terms import Terms
from polyclinic.wire.arrays import MERGED, WEIGHT, fill_record, size_of, unreadable
from polyclinic.wire.messages import RECORD, REFUSED, Request, passed_on
from polyclinic.wire.passing import PassingGrid

NO_REPLY = 504
_LONGEST, _LONGEST_NUMBER = 500, 25


@dataclass(frozen=True)
class Site:
    """A hospital taking part: what it said of itself when it enrolled.

    ``budget``: its lifetime epsilon; None is unlimited
    ``elsewhere``: in how many other hospitals one of its patients may also be, at most
    ``knows_others``: whether it takes keys for secure sums from hospitals alone that it knows
    ``versions``: of what it computes with, by name
    ``metrics_epsilon``: the most that the run's private metrics may cost its held-out patients
    ``asks_people``: whether a person there must approve what it is asked
    """

    index: int
    name: str
    node: int
    simulated: bool
    schema: Schema
    delta: float
    budget: float | None
    relation: Relation
    accountant: Accountant
    elsewhere: int = 0
    knows_others: bool = False
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    metrics_epsilon: float = 0.0
    asks_people: bool = field(default=False, compare=False)

    @property
    def id(self) -> int:
        """The node id that strategies see."""
        return self.index + 1

    @property
    def terms(self) -> Terms:
        """By what its epsilon is measured, with the budget of its policy."""
        return Terms(self.name, self.delta, self.relation, self.schema.unit, self.budget, self.accountant)

    def as_dict(self) -> dict[str, Any]:
        """What it said and its node, as plain values, without the schema, which all hospitals of a run share."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "schema"}

    @classmethod
    def away(cls, values: Mapping[str, Any], schema: Schema) -> Site:
        """A hospital that took part and cannot be reached."""
        return cls(schema=schema, **values)


Dropped = list[tuple[str, str]]


def registered_names(grid: Grid) -> dict[int, str]:
    """The names under which the coordinator registered the keys of the nodes that are there: the SuperLink's word, not theirs."""
    return {node.node_id: node.name for node in grid.get_nodes() if node.name}


def node_title(node: int, names: Mapping[int, str]) -> str:
    """What a node is called that is no hospital of the run: its name of ``registered_names``, if any, and its number."""
    return f"{names[node]} (node {node})" if node in names else f"node {node}"


def silence(timeout: float | None) -> str:
    """The reason of who did not reply in time."""
    return f"no reply within {timeout or 0:g} seconds"


def reason_of(reply: Message) -> str:
    """Why a reply is an error, as ``one_line`` of printed text."""
    return one_line(reply.error.reason or "")


def one_line(reason: str) -> str:
    """A hospital's words as one line of printed text that is not too long to read."""
    line = " ".join("".join(char if char.isprintable() else " " for char in reason[:_LONGEST]).split())
    return line or "no reason given"


def by_index(replies: Iterable[Message], asked: Mapping[int, int]) -> dict[int, Message]:
    """The replies by the index for which their nodes were asked; ``asked``: the node of each index."""
    hosted: dict[int, list[int]] = {}
    for index, node in asked.items():
        hosted.setdefault(node, []).append(index)
    replies_by_index: dict[int, Message] = {}
    for reply in replies:
        group, hosts = reply.metadata.group_id, hosted.get(reply.metadata.src_node_id, [])
        index = int(group) if group.isascii() and group.isdigit() and len(group) < _LONGEST_NUMBER else -1
        # The SuperLink knows the node by its key; the group is the node's own word, and Flower's errors may have lost it.
        if index not in asked or (hosts and index not in hosts):
            index = hosts[0] if len(hosts) == 1 else -1
        if index >= 0:
            replies_by_index[index] = reply
    return replies_by_index


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


_BY_ITSELF = (
    "The strategy sends messages by itself, which hospitals do not answer in a run; return them from configure_train, or ask "
    "hospitals for statistics by `polyclinic query`."
)


class SiteGrid(PassingGrid):
    """The cohort of one exchange, as a Grid.

    ``request`` is added to each site's message under the name ``polyclinic``, ``shared`` arrays under their own names.
    """

    def __init__(
        self, grid: Grid, cohort: Sequence[Site], request: Callable[[Site], Request], shared: Mapping[str, ArrayRecord]
    ) -> None:
        super().__init__(grid)
        self._cohort = {site.id: site for site in cohort}
        self._request = request
        self._shared = shared

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self._cohort)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raises ConfigError: hospitals answer what a round asks them, which is what ``configure_train`` returns."""
        raise ConfigError(_BY_ITSELF)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Raises ConfigError as ``push_messages``."""
        raise ConfigError(_BY_ITSELF)

    def exchange(self, messages: Iterable[Message], timeout: float | None) -> Exchange:
        """Send each message to its site; a site that errs, or is silent for ``timeout`` seconds, is dropped."""
        addressed = sorted((self._address_message(message) for message in messages), key=lambda pair: pair[0].index)
        replies = self._grid.send_and_receive([message for _, message in addressed], timeout=timeout)
        replies_by_index = by_index(replies, {site.index: site.node for site, _ in addressed})
        exchange = Exchange([])
        counted: dict[int, int] = {}
        speaks_for_itself = not getattr(self._grid, "merges", False)
        for site, message in addressed:
            reply = replies_by_index.get(site.index) or Message(Error(NO_REPLY, silence(timeout)), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = site.id
            if reply.has_error():
                if reply.error.code == REFUSED:
                    exchange.refusals.append(site)
                exchange.dropped.append((site, reason_of(reply)))
            elif why := unreadable(reply.content):
                exchange.dropped.append((site, why))
            else:
                if speaks_for_itself:
                    _speak_for_itself(reply)
                exchange.sizes[site.index] = size_of(message.content, counted), size_of(reply.content, counted)
                exchange.replies.append((site, reply))
        return exchange

    def _address_message(self, message: Message) -> tuple[Site, Message]:
        site = self._cohort[message.metadata.dst_node_id]
        records = message.content.__dict__["_data"] | self._shared | {RECORD: self._request(site).record()}
        return site, passed_on(
            message, fill_record(RecordDict(), records), dst_node_id=site.node, group_id=str(site.index)
        )  # fmt: skip


def put(
    grid: Grid, sites: Sequence[Site], kind: str, request: Request, timeout: float, content: RecordDict | None = None
) -> Exchange:
    """Sends one request to all sites, each with its own index, beside the same ``content``; returns the exchange.

    Args:
        grid: Flower's grid.
        sites: The sites that are asked.
        kind: The message's type.
        request: The request, whose ``site`` is set for each.
        timeout: For how many seconds replies are waited for.
        content: More records of the message; none by default.
    """
    view = SiteGrid(grid, sites, lambda site: request.model_copy(update={"site": site.index}), {})
    return view.exchange([Message(content or RecordDict(), site.id, kind) for site in sites], timeout)


def _speak_for_itself(reply: Message) -> None:
    """Take back a claim to be merged with others, which no real hospital's reply is."""
    for record in reply.content.config_records.values():
        for claim in (MERGED, WEIGHT):
            record.pop(claim, None)
