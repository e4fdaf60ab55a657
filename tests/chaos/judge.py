"""What must hold after any schedule, judged from what the server heard and what the hospitals wrote."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant
from safetensors.numpy import load_file

from polyclinic.client.home.journal import NAME
from polyclinic.lines import read_lines
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event, event_from_json
from polyclinic.privacy.ledger import Ledger
from tests.chaos.place import DELTA, Place

Key = Mapping[tuple[str, int], int]
Digests = Mapping[tuple[str, int], set[str]]
_BY: Any = ("pld", "add-remove")
_ROUGH = ("Traceback", "<class", 'File "', "0x")


def complaints(place: Place, results: Sequence[Path], keys: dict[str, Any]) -> list[str]:
    """Every promise that was broken, in words; empty when all held. ``results``: folders of the runs that were finished."""
    return [*_runs(results), *_ledgers(place, results, keys), *_words(place, results)]


def _runs(results: Sequence[Path]) -> Iterable[str]:
    for folder in results:
        summary = json.loads((folder / "summary.json").read_text())
        if not all(np.isfinite(value).all() for value in load_file(folder / "model.safetensors").values()):
            yield f"{folder.name}: the model is not finite"
        if summary["rounds"] != 3 and not summary["stopped"]:
            yield f"{folder.name}: ended after round {summary['rounds']} and does not say why"
        if not any(site["rounds_joined"] for site in summary["metrics"]["sites"].values()):
            yield f"{folder.name}: nobody trained"


def _ledgers(place: Place, results: Sequence[Path], keys: dict[str, Any]) -> Iterable[str]:
    names, heard = place.node_names(), place.heard()
    summaries = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in results}
    noise = {reply["run"]: reply["noise_multiplier"] for reply in heard}
    for name, hospital in place.hospitals.items():
        own = [reply for reply in heard if names.get(reply["node"]) == name]
        journal = read_lines(hospital.home / NAME)
        answered = [entry for entry in journal.entries if entry["event"] == "answered" and entry["kind"] == "train"]
        if not journal.intact:
            yield f"{name}: the journal does not hold together"
        if not (hospital.home / "ledger.sqlite").exists():
            if own or answered:
                yield f"{name}: answered and has no ledger"
            continue
        ledger = Ledger.read(hospital.home / "ledger.sqlite")
        if not ledger.verify():
            yield f"{name}: the ledger is not intact"
        charged: dict[tuple[str, int], int] = defaultdict(int)
        for event in ledger.events():
            if event["purpose"] == "train":
                charged[event["run"], event["round"]] += 1
        released: dict[tuple[str, int], set[str]] = defaultdict(set)
        for reply in own:
            released[reply["run"], reply["round"]].add(reply["digest"])
        left: dict[tuple[str, int], set[str]] = defaultdict(set)
        for entry in answered:
            left[entry["run"], entry["round"]].add(entry["digest"])
        for (run, round), digests in released.items():
            if len(digests) > charged[run, round]:
                yield f"{name}: round {round} of {run} was released {len(digests)} times and charged {charged[run, round]}"
            if not digests <= left[run, round]:
                yield f"{name}: round {round} of {run} was released and is not in the journal"
        for (run, round), digests in left.items():
            if len(digests) > charged[run, round]:
                yield f"{name}: {len(digests)} answers of round {round} of {run} left for {charged[run, round]} charges"
        for entry in answered:
            if not charged[entry["run"], entry["round"]]:
                yield f"{name}: round {entry['round']} of {entry['run']} was answered and not charged"
        spent, least = ledger.epsilon(), _epsilon(own, released, keys)
        if least > spent * (1 + 1e-6):
            yield f"{name}: what was released costs epsilon {least:.4f}, the ledger says {spent:.4f}"
        for run, summary in summaries.items():
            away = {
                drop["round"]
                for drop in summary["dropouts"]
                if drop["site"] == name and (run, drop["round"]) not in charged
            }
            most = spent
            if away and run in noise:
                step = dpsgd_event(keys["training.sample-rate"], noise[run], keys["training.local-steps"])
                paid = [event_from_json(event["event"]) for event in ledger.events()]
                with_away = epsilon(dpa.ComposedDpEvent([*paid, *[step] * len(away)]), ledger.delta, *_BY)
                most = most * with_away / epsilon(dpa.ComposedDpEvent(paid), ledger.delta, *_BY) if paid else with_away
            yield from _statement(name, run, summary["metrics"]["sites"], charged, released, own, keys, most)


def _statement(
    name: str, run: str, sites: dict[str, Any], charged: Key, released: Digests, own: Sequence[dict[str, Any]],
    keys: dict[str, Any], most: float,
) -> Iterable[str]:  # fmt: skip
    """What the run says of a hospital: that it was there, and no less than the rounds cost that it was counted in.

    ``most``: what its ledger says, with the rounds in which no answer came, of which the run cannot know whether they were paid.
    """
    rounds = sorted(round for (of, round), digests in released.items() if of == run and digests)
    if name not in sites:
        if rounds or any(of == run for of, _ in charged):
            yield f"{name}: was charged for {run}, which does not say that it took part"
        return
    says, joined = sites[name]["epsilon"] or 0.0, sites[name]["rounds_joined"]
    if says > most * 1.05:
        yield f"{name}: the run says epsilon {says}, the ledger with rounds of no answer {most:.4f}"
    if joined > len(rounds):
        yield f"{name}: {run} counts it in {joined} rounds, and it was heard in {len(rounds)}"
    # A reply that came as the server was killed is in no statement; what was counted is.
    least = _epsilon(own, {(run, round): released[run, round] for round in rounds[:joined]}, keys, once=True)
    if least > says * (1 + 1e-6):
        yield f"{name}: {run} says epsilon {says:.4f}, its {joined} rounds cost {least:.4f}"


def _epsilon(own: Sequence[dict[str, Any]], released: Digests, keys: dict[str, Any], once: bool = False) -> float:
    """Of the different updates that the server heard, by dp-accounting alone; at least, since statistics are not in it.

    once: as if each round had been released once.
    """
    noise = {(reply["run"], reply["round"]): reply["noise_multiplier"] for reply in own}
    accountant = PLDAccountant(dpa.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for key, digests in released.items():
        step = dpa.PoissonSampledDpEvent(keys["training.sample-rate"], dpa.GaussianDpEvent(noise[key]))
        accountant.compose(step, keys["training.local-steps"] * (1 if once else len(digests)))
    found = float(accountant.get_epsilon(DELTA)) if released else 0.0
    return found if math.isfinite(found) else math.inf


def _words(place: Place, results: Sequence[Path]) -> Iterable[str]:
    """Every reason that a person is told is a sentence, and not the inside of a program."""
    reasons = []
    for folder in results:
        summary = json.loads((folder / "summary.json").read_text())
        reasons += [str(drop["reason"]) for drop in summary["dropouts"]]
    for hospital in place.hospitals.values():
        entries = [
            entry
            for entry in read_lines(hospital.home / NAME).entries
            if entry["kind"] != "approval" or entry.get("why")
        ]
        reasons += [str(entry.get("why", "-")) for entry in entries]  # a person need not give one
    for reason in set(reasons):
        if not reason or any(rough in reason for rough in _ROUGH):
            yield f"no readable reason: {reason[:200]!r}"
