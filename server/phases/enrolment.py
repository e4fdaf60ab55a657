"""Who takes part in a run: what nodes say of themselves when they are asked, and which of them are believed.

Whatever a node answers, it leaves out itself alone, with a reason.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from logging import INFO, WARNING
from pathlib import Path
from typing import Annotated, Literal

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

import polyclinic
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import PolyclinicError, several, whose
from polyclinic.files import write_file
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.server.calibration import declared_plan
from polyclinic.server.exchange.prompt import replies_to
from polyclinic.server.exchange.sites import (
    Dropped,
    Site,
    by_index,
    node_title,
    one_line,
    reason_of,
    registered_names,
    silence,
)
from polyclinic.wire.messages import ENROL, RECORD, EnrolRequest, SiteName
from polyclinic.wire.versions import PRIVACY_FORMAT, version_conflict, versions

_LONGEST_SCHEMA = 16_000_000
# Seconds between two looks at whether a person has approved the run, and for an answer to one.
_APPROVAL_POLL, _APPROVAL_ANSWER = 5.0, 60.0
# Of the time that a run has waited, the part after which hospitals are asked again.
_APPROVAL_SHARE = 0.05
_Word = Annotated[str, Field(max_length=100)]


class _Who(BaseModel):
    """What every hospital says of itself, also one that refuses the run: ``refusal`` says why, and is empty otherwise.

    waits: a person there has yet to approve the run.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    site: SiteName
    versions: Json[dict[_Word, _Word]] = Field(max_length=20)
    refusal: str = ""
    waits: bool = False


class _Told(_Who):
    """What a hospital that takes part says of itself; ``sites``: how many a simulation has."""

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
    asks_people: bool = False
    metrics_epsilon: float = Field(ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class _Answers:
    """``good``: the place that was asked for, the node, and what it told; ``erred``: who said why not, by the same place;
    ``refused``: the node, the hospital's name, and why it refuses the run, or its privacy format is another;
    ``waiting``: by place, the same of hospitals where a person has yet to approve it."""

    good: list[tuple[int, int, _Told]] = field(default_factory=list)
    unread: Dropped = field(default_factory=list)
    refused: list[tuple[int, str, str]] = field(default_factory=list)
    waiting: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    erred: dict[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()


def enrol_request(
    run: str, home: str, privacy: PrivacyPlan | None = None, trains: bool = True, local_half: bool = False,
    question: str = "",
) -> EnrolRequest:  # fmt: skip
    """What hospitals are asked when they enrol.

    Args:
        run: The run's name.
        home: The folder of simulated hospitals.
        privacy: The run's privacy plan; None without privacy.
        trains: False for a query of its own, outside a run of training.
        local_half: Whether the strategy has a half at hospitals.
        question: A query's question, which a person at the hospital may have to approve.
    """
    return EnrolRequest(
        run=run, site=0, home=home, plan=declared_plan(privacy), version=polyclinic.__version__, trains=trains,
        local_half=local_half, question=question,
        noise_multiplier=privacy and privacy.noise_multiplier,
        statistics_noise_multiplier=privacy and privacy.statistics_noise_multiplier,
    )  # fmt: skip


@dataclass(frozen=True)
class ApprovalWait:
    """How long a run waits for hospitals where a person must approve it.

    ``seconds``: at most.
    ``file``: names them while it waits, for who looks at the run's folder; None names them in the log alone.
    """

    seconds: float = 0.0
    file: Path | None = None

    def note(self, hospitals: Sequence[str]) -> None:
        """Writes down for whom the run waits now, if for anybody."""
        if self.file is None:
            return
        if hospitals:
            write_file(self.file, json.dumps(sorted(hospitals)))
        else:
            self.file.unlink(missing_ok=True)


NO_WAIT = ApprovalWait()


def enrol(
    grid: Grid, request: EnrolRequest, wanted: int, timeout: float, only: Mapping[int, str] | None = None,
    simulates: bool = True, approval: ApprovalWait = NO_WAIT,
) -> tuple[list[Site], Dropped]:  # fmt: skip
    """Every hospital that enrols, in a stable order, and those that did not, with their reasons.

    Left out are hospitals that refuse the run or have another privacy format, and real hospitals that share a name or
    whose schema is not that of most. Left out are also hospitals that say that they are simulated where most are not,
    or where the run has none, and the other way round.

    Args:
        grid: Flower's grid.
        request: What each is asked.
        wanted: How many real hospitals are waited for; simulated ones share whatever nodes there are.
        timeout: For how many seconds they are waited for.
        only: Nodes that are asked and the names of their hospitals, None for all.
        simulates: Whether the run may have simulated hospitals.
        approval: For how long hospitals where a person must approve the run are asked again.

    Raises:
        PolyclinicError: None enrols.
    """
    deadline = time.monotonic() + timeout
    nodes = sorted(_wait_for_nodes(grid, 1, deadline, only))
    asked = dict(enumerate(nodes))
    registered = registered_names(grid)
    early = _ask(grid, request, asked, timeout, registered)
    claims = Counter(hospital.simulated for _, _, hospital in early.good)
    simulated = simulates and claims[True] > claims[False]
    if simulated:
        total = Counter(hospital.sites for _, _, hospital in early.good if hospital.simulated).most_common(1)[0][0]
        more = {place: nodes[place % len(nodes)] for place in range(len(nodes), total)}
        asked |= more
    else:
        total = len(asked)
        new = sorted(set(_wait_for_nodes(grid, wanted, deadline, only)) - set(nodes))
        more = dict(enumerate(new, total))
        total, asked = total + len(new), asked | more
        registered |= registered_names(grid) if new else {}
    later = _ask(grid, request, more, timeout, registered)
    _await_approval(grid, request, asked, (early, later), registered, approval)
    good = [answer for answer in (*early.good, *later.good) if answer[0] < total]
    absent = {**early.erred, **later.erred} | dict.fromkeys((*early.silent, *later.silent), silence(timeout))
    names = only or {}
    dropped = [
        (f"site {place}" if simulated else names.get(asked[place], node_title(asked[place], registered)), why)
        for place, why in sorted(absent.items()) if place < total
    ]  # fmt: skip
    sites, others = _sites(good, simulated, registered)
    waiting = [*early.waiting.values(), *later.waiting.values()]
    dropped += [(name, why) for _, name, why in early.refused + later.refused + waiting]
    dropped += early.unread + later.unread + others
    if not sites:
        # Of one hospital alone there is no question whose the reason is.
        alone = len(dropped) == 1 or simulated
        why = (several(sorted({why for _, why in dropped}), between="; ") if alone else whose(dropped)) or "no reply"
        raise PolyclinicError(f"No hospital could enrol: {why.rstrip('.')}.")
    fit, unlike = _alike(sites)
    return fit, dropped + unlike


def settle(grid: Grid, config: RunConfig) -> RunConfig:
    """The configuration with what it leaves open chosen by what hospitals say when they enrol, before anything is charged.

    The optimizer and the method of task synthesis follow from their schema. Delta is as most of their policies state
    it, of several the smallest in a tie. Who has another delta is left out later, with the reason. Raises
    PolyclinicError as ``enrol`` does.
    """
    without_delta = config.privacy.dp and not config.privacy.delta
    if not config.is_open and not without_delta:
        return config
    wanted = max(config.sites, config.participation.min_sites)
    request = enrol_request("settle", config.out, trains=False)
    sites, _ = enrol(grid, request, wanted, config.timeout, simulates=getattr(grid, "simulates", True))
    config = config.for_schema(sites[0].schema)
    if not without_delta:
        return config
    votes = Counter(site.delta for site in sites)
    return config.with_values({"privacy.delta": max(votes, key=lambda delta: (votes[delta], -delta))})


@dataclass(frozen=True)
class Newcomers:
    """What came of asking nodes to enrol.

    ``answered``: the nodes that told who they are, or what cannot be read
    ``pending``: messages that have no reply, by their nodes
    ``sites``: the hospitals among those that answered
    ``absent``: why others are none
    ``erred``: nodes that gave an error, and the reason
    ``names``: under which nodes are registered
    """

    answered: frozenset[int]
    sites: list[Site]
    absent: Dropped
    erred: dict[int, str]
    pending: dict[int, str]
    names: dict[int, str]


def ask_to_enrol(grid: Grid, request: EnrolRequest, nodes: Iterable[int]) -> dict[int, str]:
    """Asks ``nodes`` to enrol; returns the messages, by node. Nobody is waited for.

    Args:
        grid: Flower's grid.
        request: What each is asked.
        nodes: The nodes' ids.
    """
    asked = list(nodes)
    sent = grid.push_messages([_message(request, node, node) for node in asked]) if asked else []
    return {node: name for node, name in zip(asked, sent, strict=True) if name}


def newcomers(grid: Grid, asked: Mapping[int, str], timeout: float) -> Newcomers:
    """What came of ``asked`` within ``timeout`` seconds, as real hospitals' answers.

    Args:
        grid: Flower's grid.
        asked: The messages by node, as ``ask_to_enrol`` returns them.
        timeout: For how many seconds replies are waited for; 0 looks once.
    """
    nodes = {node: node for node in asked}
    names = registered_names(grid) if asked else {}
    got = _read(replies_to(grid, asked.values(), timeout), nodes, names)
    sites, others = _sites(got.good, False, names)
    declined = [*got.refused, *got.waiting.values()]
    refused = [(name, why) for _, name, why in declined]
    # Who refused is asked again: a policy, a version or a person's decision may be another by then.
    answered = frozenset(asked) - set(got.erred) - set(got.silent) - {node for node, _, _ in declined}
    pending = {node: asked[node] for node in got.silent}
    return Newcomers(answered, sites, refused + got.unread + others, got.erred, pending, names)


def _wait_for_nodes(grid: Grid, needed: int, deadline: float, only: Mapping[int, str] | None) -> list[int]:
    while len(nodes := [node for node in grid.get_node_ids() if only is None or node in only]) < needed:
        if time.monotonic() >= deadline:
            raise PolyclinicError(f"{len(nodes)} nodes connected in time; the run needs {needed}.")
        time.sleep(0.5)
    return nodes


def _message(request: EnrolRequest, place: int, node: int) -> Message:
    asked = request.model_copy(update={"site": place})
    return Message(RecordDict({RECORD: asked.record()}), node, ENROL, group_id=str(place))


def _ask(
    grid: Grid, request: EnrolRequest, asked: Mapping[int, int], timeout: float, names: Mapping[int, str]
) -> _Answers:
    """What the node of each place answers."""
    if not asked:
        return _Answers()
    messages = [_message(request, place, node) for place, node in asked.items()]
    return _read(grid.send_and_receive(messages, timeout=timeout), asked, names)


def _await_approval(
    grid: Grid, request: EnrolRequest, asked: Mapping[int, int], answers: Sequence[_Answers], names: Mapping[int, str],
    wait: ApprovalWait,
) -> None:  # fmt: skip
    """Ask hospitals where a person must approve the run until all have decided or the time is over; ``answers`` then have it."""
    began, before = time.monotonic(), ""
    deadline = began + wait.seconds
    while time.monotonic() < deadline and (
        waiting := [name for batch in answers for _, name, _ in batch.waiting.values()]
    ):
        ready = sorted(hospital.site for batch in answers for _, _, hospital in batch.good)
        line = f"waits for approval at {several(sorted(waiting))}; ready: {several(ready) or 'none'}"
        refused = whose((name, why) for batch in answers for _, name, why in batch.refused)
        line += f"; refused: {refused}" if refused else ""
        if line != before:
            log(INFO, "Polyclinic: %s", line)
            wait.note(waiting)
        before = line
        # Sooner at first: each question is two lines of the hospital's journal, and a person may take a day.
        now = time.monotonic()
        pause = max(_APPROVAL_POLL, min((now - began) * _APPROVAL_SHARE, _APPROVAL_ANSWER))
        time.sleep(min(pause, max(0.0, deadline - now)))
        for batch in answers:
            again = _ask(grid, request, {place: asked[place] for place in batch.waiting}, _APPROVAL_ANSWER, names)
            # Whose node is silent, as while it is started anew, still waits.
            still = {place: batch.waiting[place] for place in again.silent}
            batch.waiting.clear()
            batch.waiting.update(still | again.waiting)
            batch.good.extend(again.good)
            batch.refused.extend(again.refused)
            batch.unread.extend(again.unread)
            batch.erred.update(again.erred)
    wait.note([])


def _read(replies: Iterable[Message], asked: Mapping[int, int], names: Mapping[int, str]) -> _Answers:
    came = by_index(replies, asked)
    answers = _Answers(silent=tuple(sorted(set(asked) - set(came))))
    for place, reply in sorted(came.items()):
        if reply.has_error():
            answers.erred[place] = reason_of(reply)
            continue
        record = reply.content.get(RECORD)
        fields = dict(record) if isinstance(record, ConfigRecord) else None
        try:
            who = _Who.model_validate(fields)
            # An older or newer hospital may say the rest otherwise.
            why = version_conflict(who.versions, versions()) or who.refusal
            if why and who.waits:
                answers.waiting[place] = (asked[place], who.site, one_line(why))
            elif why:
                answers.refused.append((asked[place], who.site, one_line(why)))
            else:
                answers.good.append((place, asked[place], _Told.model_validate(fields)))
                if (its := who.versions.get("polyclinic", "")) != polyclinic.__version__:
                    log(WARNING, "Polyclinic: %s has version %r, the coordinator has %s; both have privacy format %d.",
                        who.site, its, polyclinic.__version__, PRIVACY_FORMAT)  # fmt: skip
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or RECORD
            answers.unread.append(_unread(node_title(asked[place], names), where))
    return answers


def _unread(title: str, where: str) -> tuple[str, str]:
    return title, f"what it says of itself when it enrols cannot be read: field {where!r}"


def _sites(
    good: Sequence[tuple[int, int, _Told]], simulated: bool, names: Mapping[int, str]
) -> tuple[list[Site], Dropped]:
    """The hospitals, in order: of a simulation as they were asked, real ones by name; and who is no hospital of this kind."""
    schema = cache(lambda text: Schema.from_dict(json.loads(text)))
    sites: list[Site] = []
    dropped: Dropped = []
    for place, node, hospital in good if simulated else sorted(good, key=lambda answer: answer[2].site):
        if hospital.simulated != simulated:
            kinds = ("simulated", "real") if hospital.simulated else ("real", "simulated")
            dropped.append((hospital.site, f"it says that it is {kinds[0]}, and the run's hospitals are {kinds[1]}"))
            continue
        if simulated and hospital.index != place:
            dropped.append(_unread(node_title(node, names), "index"))
            continue
        try:
            sites.append(Site(
                place if simulated else len(sites), hospital.site, node, simulated, schema(hospital.schema_), hospital.delta,
                hospital.budget or None, hospital.relation, hospital.accountant, hospital.elsewhere, hospital.knows_others,
                hospital.versions, hospital.metrics_epsilon, hospital.asks_people,
            ))  # fmt: skip
        except (PolyclinicError, TypeError, ValueError, RecursionError):
            dropped.append(_unread(node_title(node, names), "schema"))
    return sites, dropped


def same_name(site: Site, sites: Iterable[Site]) -> str:
    """Why a hospital that has its name in common with others of ``sites`` is left out; Flower tells nodes apart by their keys."""
    others = map(str, sorted({other.node for other in sites if other.name == site.name} - {site.node}))
    return (
        f"another hospital has the same name: it is node {site.node}, the other is node {several(others)}; every "
        "hospital needs its own. `polyclinic coordinator nodes` lists the names under which their keys were registered."
    )


def _alike(sites: Sequence[Site]) -> tuple[list[Site], Dropped]:
    """The sites with a name of their own and the schema of most of them (of the first of those, in a tie), and the others."""
    names = Counter(site.name for site in sites)
    own = [site for site in sites if names[site.name] == 1]
    dropped = [(site.name, same_name(site, sites)) for site in sites if names[site.name] > 1]
    schemas: list[Schema] = []
    for site in own:
        schemas.append(
            next((schema for schema in schemas if schema is site.schema or schema == site.schema), site.schema)
        )
    votes = Counter(map(id, schemas))
    common = max(schemas, key=lambda schema: votes[id(schema)], default=None)
    fit = [site for site, schema in zip(own, schemas, strict=True) if schema is common]
    strangers = [site.name for site, schema in zip(own, schemas, strict=True) if schema is not common]
    return fit, dropped + [
        (name, "its schema is not that of most hospitals; all need the same one") for name in strangers
    ]
