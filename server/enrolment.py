"""Who takes part in a run: what nodes say of themselves when they are asked, and which of them are believed.

Whatever a node answers, it leaves out itself alone, with a reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.ehr.schema import Schema
from polyclinic.errors import PolyclinicError, several
from polyclinic.messages import ENROL, RECORD, EnrolRequest, SiteName
from polyclinic.server.prompt import replies_to
from polyclinic.server.sites import Dropped, Site, by_index, reason_of, silence

_LONGEST_SCHEMA = 16_000_000


class _Told(BaseModel):
    """What a hospital may say of itself; ``sites``: how many a simulation has."""

    model_config = ConfigDict(frozen=True, strict=True)

    site: SiteName
    index: int = Field(ge=0)
    simulated: bool
    sites: int = Field(ge=1, le=1_000_000)
    schema_: str = Field(alias="schema", max_length=_LONGEST_SCHEMA)
    delta: float = Field(gt=0, lt=1)
    budget: float = Field(ge=0, allow_inf_nan=False)
    relation: Literal["add-remove", "replace-one"]
    accountant: Literal["pld", "rdp"]
    elsewhere: Annotated[int, Field(ge=0, lt=1000)]
    knows_others: bool


@dataclass(frozen=True)
class _Answers:
    """``good``: the place that was asked for, the node, and what it told; ``erred``: who said why not, by the same place."""

    good: list[tuple[int, int, _Told]] = field(default_factory=list)
    unread: Dropped = field(default_factory=list)
    erred: dict[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


def enrol(
    grid: Grid, run: str, home: str, wanted: int, timeout: float, only: Collection[int] | None = None,
    simulates: bool = True,
) -> tuple[list[Site], Dropped]:  # fmt: skip
    """Every hospital that enrols, in a stable order, and those that did not, with their reasons.

    Waits up to ``timeout`` seconds for ``wanted`` real hospitals; simulated ones share whatever nodes there are. ``only``:
    nodes that are asked, None for all. Left out are real hospitals that share a name, whose schema is not that of most, or
    that say that they are simulated where most are not, or where the run has none (``simulates`` false), and the other way
    round. Raises PolyclinicError when none enrols.
    """
    deadline = time.monotonic() + timeout
    nodes = sorted(_wait_for_nodes(grid, 1, deadline, only))
    asked = dict(enumerate(nodes))
    found = _ask(grid, run, home, asked, timeout)
    claims = Counter(told.simulated for _, _, told in found.good)
    simulated = simulates and claims[True] > claims[False]
    if simulated:
        total = Counter(told.sites for _, _, told in found.good if told.simulated).most_common(1)[0][0]
        more = {place: nodes[place % len(nodes)] for place in range(len(nodes), total)}
        asked |= more
    else:
        total = len(asked)
        new = sorted(set(_wait_for_nodes(grid, wanted, deadline, only)) - set(nodes))
        more = dict(enumerate(new, total))
        total, asked = total + len(new), asked | more
    later = _ask(grid, run, home, more, timeout)
    good = [one for one in (*found.good, *later.good) if one[0] < total]
    absent = {**found.erred, **later.erred} | dict.fromkeys((*found.silent, *later.silent), silence(timeout))
    dropped = [
        (f"site {place}" if simulated else f"node {asked[place]}", why)
        for place, why in sorted(absent.items()) if place < total
    ]  # fmt: skip
    sites, others = _sites(good, simulated)
    dropped += found.unread + later.unread + others
    if not sites:
        why = several(sorted({why for _, why in dropped}), between="; ") or "no reply"
        raise PolyclinicError(f"No hospital could enrol: {why.rstrip('.')}.")
    fit, unlike = _alike(sites)
    return fit, dropped + unlike


@dataclass(frozen=True)
class Newcomers:
    """``answered``: the nodes that told who they are, or what cannot be read; ``pending``: messages that have no reply, by
    their nodes; ``found``: the hospitals among those that answered; ``absent``: why others are none."""

    answered: frozenset[int]
    found: list[Site]
    absent: Dropped
    pending: dict[int, str]


def ask_to_enrol(grid: Grid, run: str, home: str, nodes: Iterable[int]) -> dict[int, str]:
    """The messages that ask ``nodes`` to enrol, by node. Nobody is waited for."""
    asked = list(nodes)
    sent = grid.push_messages([_message(run, home, node, node) for node in asked]) if asked else []
    return {node: name for node, name in zip(asked, sent, strict=True) if name}


def newcomers(grid: Grid, asked: Mapping[int, str], timeout: float) -> Newcomers:
    """What came of ``asked`` (``ask_to_enrol``) within ``timeout`` seconds, as real hospitals' answers."""
    nodes = {node: node for node in asked}
    got = _read(replies_to(grid, asked.values(), timeout), nodes)
    sites, others = _sites(got.good, simulated=False)
    absent = [(f"node {node}", why) for node, why in got.erred.items()]
    known = frozenset(asked) - set(got.erred) - set(got.silent)
    return Newcomers(known, sites, absent + got.unread + others, {node: asked[node] for node in got.silent})


def _wait_for_nodes(grid: Grid, needed: int, deadline: float, only: Collection[int] | None) -> list[int]:
    while len(nodes := [node for node in grid.get_node_ids() if only is None or node in only]) < needed:
        if time.monotonic() >= deadline:
            raise PolyclinicError(f"{len(nodes)} nodes connected in time; the run needs {needed}.")
        time.sleep(0.5)
    return nodes


def _message(run: str, home: str, place: int, node: int) -> Message:
    request = EnrolRequest(run=run, site=place, home=home)
    return Message(RecordDict({RECORD: request.record()}), node, ENROL, group_id=str(place))


def _ask(grid: Grid, run: str, home: str, asked: Mapping[int, int], timeout: float) -> _Answers:
    """What the node of each place answers."""
    if not asked:
        return _Answers()
    messages = [_message(run, home, place, node) for place, node in asked.items()]
    return _read(grid.send_and_receive(messages, timeout=timeout), asked)


def _read(replies: Iterable[Message], asked: Mapping[int, int]) -> _Answers:
    came = by_index(replies, asked)
    answers = _Answers(silent=tuple(sorted(set(asked) - set(came))))
    for place, reply in sorted(came.items()):
        if reply.has_error():
            answers.erred[place] = reason_of(reply)
            continue
        record = reply.content.get(RECORD)
        try:
            told = _Told.model_validate(dict(record) if isinstance(record, ConfigRecord) else None)
            answers.good.append((place, asked[place], told))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or RECORD
            answers.unread.append(_unread(asked[place], where))
    return answers


def _unread(node: int, where: str) -> tuple[str, str]:
    return f"node {node}", f"what it says of itself when it enrols cannot be read: field {where!r}"


def _sites(good: Sequence[tuple[int, int, _Told]], simulated: bool) -> tuple[list[Site], Dropped]:
    """The hospitals, in order: of a simulation as they were asked, real ones by name; and who is no hospital of this kind."""
    schema = cache(lambda text: Schema.from_dict(json.loads(text)))
    sites: list[Site] = []
    dropped: Dropped = []
    for place, node, told in good if simulated else sorted(good, key=lambda one: one[2].site):
        if told.simulated != simulated:
            kinds = ("simulated", "real") if told.simulated else ("real", "simulated")
            dropped.append((told.site, f"it says that it is {kinds[0]}, and the run's hospitals are {kinds[1]}"))
            continue
        if simulated and told.index != place:
            dropped.append(_unread(node, "index"))
            continue
        try:
            sites.append(Site(
                place if simulated else len(sites), told.site, node, simulated, schema(told.schema_), told.delta,
                told.budget or None, told.relation, told.accountant, told.elsewhere, told.knows_others,
            ))  # fmt: skip
        except (PolyclinicError, TypeError, ValueError, RecursionError):
            dropped.append(_unread(node, "schema"))
    return sites, dropped


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
