"""What a run's privacy statement says in plain words: what epsilon covers, what it does not, and what to beware of.

Only sentences; the numbers come from the accountants and the ledgers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from polyclinic.errors import ConfigError, nearest, several

#: In place of a figure that the policies did not let leave.
NOT_RELEASED = "not released"
RELATIONS = {
    "add-remove": "it compares training with and without the whole of one {unit}.",
    "replace-one": "it compares training with one {unit} and with another in that one's place.",
}

GUESSED = {
    "add-remove": "{unit}s took part",
    "replace-one": "{unit}s have one record and not another",
}


def relation_meaning(relation: str, unit: str) -> str:
    """One clause on what two neighbouring data sets are under ``relation``."""
    return RELATIONS.get(relation, "see the accountant's documentation.").format(unit=unit)


def composition(overlap: int, unit: str) -> str:
    """Over which hospitals a run's epsilon holds together, for a ``unit`` whose records are at ``overlap`` of them at most."""
    if overlap == 1:
        return f"disjoint {unit}s: largest over hospitals"
    return f"{unit}s in up to {overlap} hospitals: composed"


def share(value: float) -> str:
    """A share in percent, rounded up: a bound stays one."""
    percent = 100 * value
    digits = 1 if percent >= 10 else 2
    return f"{min(100.0, math.ceil(percent * 10**digits - 1e-9) / 10**digits):g} %"


def risk_sentence(risk: Mapping[str, float], unit: str, relation: str, whose: str = "") -> str:
    """Return what a risk means, in one sentence.

    Args:
        risk: ``advantage`` and ``tpr_at_1_percent_fpr``.
        unit: The unit of privacy, as "patient".
        relation: The neighbouring relation, "add-remove" or "replace-one".
        whose: " of ...", or empty.

    Raises:
        ConfigError: For another relation.
    """
    if relation not in GUESSED:
        raise ConfigError(
            f"relation must be one of {', '.join(GUESSED)}, got {relation!r}.{nearest(relation, GUESSED)}"
        )
    sought = GUESSED[relation].format(unit=unit)
    if risk["advantage"] >= 1:
        return f"Risk{whose}: no bound; an attacker who knows all other records may guess without error which {sought}."
    return (
        f"Risk{whose}: an attacker who knows all other records and guesses which {sought} has a true-positive rate of at most "
        f"{share(risk['tpr_at_1_percent_fpr'])} at a 1 % false-positive rate (blind guessing: 1 %)."
    )


def central_sentence(central: Mapping[str, Any]) -> str:
    """The guarantee to whole hospitals, and what it means.

    central: ``epsilon``, ``delta``, ``relation``, ``accountant``, ``sample_rate`` below 1 where hospitals were sampled, and
    ``secure`` where they added the noise themselves, in a secure sum, and ``risk`` where it is known.
    """
    counting = (
        ", as long as it does not know who took part in which round" if float(central.get("sample_rate", 1)) < 1 else ""
    )
    server = (
        "and against the server, as long as it keeps to the protocol"
        if central.get("secure")
        else "not against the server, which is trusted"
    )
    risk = f" {risk_sentence(central['risk'], 'hospital', str(central['relation']))}" if central.get("risk") else ""
    return (
        f"Each hospital as a whole: epsilon {float(central['epsilon']):.4g} at delta {float(central['delta']):g} "
        f"({central['relation']}: its updates count, or count as zero; {str(central['accountant']).upper()}), against "
        f"whoever sees the models that the server gave out{counting}; {server}.{risk}"
    )


def held_out_sentence(private: Mapping[str, Any], unit: str) -> str:
    """What private metrics cost, and whom.

    private: ``epsilon`` and ``delta`` of held-out patients.
    """
    return (
        f"Held-out {unit}s: private metrics cost them epsilon {float(private['epsilon']):.3g} at delta "
        f"{float(private['delta']):g}, of an account of their own. Each {unit} of a hospital is either trained on or held out "
        "there, so that the larger of the two epsilons holds."
    )


def epsilon_scope(unit: str, analysis: bool = False) -> list[str]:
    """Sentences on what epsilon bounds, for one ``unit`` of one hospital. analysis: whether the run trained no model."""
    if analysis:
        return [
            f"All noisy sums that a hospital sent, with respect to any one {unit} whose records it counted.",
            "The tables and figures, and anything computed later from them, at no further cost.",
        ]
    return [
        "All that a hospital sent in training: its noisy updates and, if it was asked for them, its noisy statistics.",
        f"The final model and every model on the way, whoever sees them, with respect to any one {unit} whose "
        "records a hospital trained on.",
        "Anything computed later from the model alone, at no further cost.",
    ]


def not_covered(
    unit: str, private: bool, simulation: bool, compared: bool, train_loss: bool, overlap: int = 1, exact: bool = True
) -> list[str]:
    """Return sentences on what no epsilon of the run bounds.

    Args:
        unit: The unit of privacy, as "patient".
        private: The run claims an epsilon.
        simulation: The hospitals are simulated.
        compared: The report shows models that were trained without this run's protection.
        train_loss: The run recorded the loss on the patients trained on.
        overlap: Of how many hospitals at most one may be a ``unit`` by the run's own words.
        exact: The report shows metrics on held-out patients that left a hospital without noise.
    """
    metrics = [
        "The metrics in this report: they are exact numbers about held-out patients. "
        + (
            "In this simulation they left the hospitals without noise, as the simulation's policy allows."
            if simulation
            else "They left a hospital only where its own policy lets metrics without noise leave. Private metrics are apart."
        ),
    ]
    items = [
        *(metrics if exact else []),
        "The exact numbers of patients, where this report has them (they leave with metrics), and the rounds that each joined.",
    ]
    if compared:
        items.append(
            "The columns of comparison: those models saw the same patients without this run's protection, so treat "
            "their numbers as confidential unless the data are public."
        )
    if not private:
        return items
    if train_loss:
        items.append(
            f"The training loss: it was computed on the very {unit}s trained on and is not part of what was charged."
        )
    if simulation:
        items.append(
            "This very model against someone who knows the seed: a simulation draws its noise from the seed so that "
            "it can be repeated, and who can repeat the noise can take it away. Epsilon says what the same training "
            "costs with noise from the operating system's entropy, as in production."
        )
    return [
        *items,
        f"One person who is a {unit} of {'several' if overlap == 1 else f'more than {overlap}'} hospitals: what they spent "
        "adds up.",
        "Choices made by looking at several runs on the same patients, beyond what each ledger was charged.",
        "What the model says about patients in general: a finding true of a population can be used on anyone in it.",
    ]


def warnings(
    sites: Mapping[str, Mapping[str, Any]], ledgers: Sequence[Mapping[str, Any]], delta: float | None
) -> list[str]:
    """Return sentences that a reader of a private run must not miss.

    Args:
        sites: By name, with ``patients``, ``epsilon`` and ``rounds_joined``.
        ledgers: Each with ``name`` and ``intact``, which is "broken" where its chain of entries does not verify.
        delta: Of the run, ``None`` if not known.
    """
    sentences = []
    broken = [str(ledger["name"]) for ledger in ledgers if ledger["intact"] == "broken"]
    if broken:
        sentences.append(
            f"The ledger of {several(broken)} does not verify: entries were changed after they were written."
        )
    bare = [name for name, site in sites.items() if site.get("epsilon") is None and site.get("rounds_joined")]
    if bare:
        sentences.append(f"What {several(bare)} spent is not known, though patients there were trained on.")
    loose = [name for name, site in sites.items() if delta and delta * float(site.get("patients") or 0) >= 1]
    if loose:
        sentences.append(
            f"Delta is not below one over the number of patients at {several(loose)}: at that size the guarantee "
            "permits revealing one patient outright."
        )
    return sentences
