"""Records dealt to simulated hospitals, whole patients at a time, from a keyed random generator.

For simulation only: partitioners look at labels and features without paying for it. A partitioner's name is one of
``PARTITIONERS``. After natural or column:NAME, ``+pool:N`` pools sites of fewer than N patients. After any name,
``+bias`` or ``+units`` lets sites measure differently: ``column:country+pool:100+bias``. Another package's, or one's
own as ``module:name``, is a function (``Dealer``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from polyclinic.ehr.partition.measurement import SHIFTS, remeasure
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, failing, nearest
from polyclinic.installed import claims
from polyclinic.types import Ints

if TYPE_CHECKING:
    from polyclinic.ehr.partition.dealt import Deal

PARTITIONERS = (
    "natural", "column:NAME", "time:NAME", "iid", "dirichlet", "quantity", "power-law", "label-quantity", "classes:K",
    "feature-shift",
)  # fmt: skip

# By name the function of ``dealt``, which a hospital never loads.
_DEALT = {
    "iid": "iid", "dirichlet": "dirichlet_label", "quantity": "quantity", "power-law": "power_law",
    "label-quantity": "label_and_quantity", "feature-shift": "feature_shift",
}  # fmt: skip
_WITH_ARGUMENT = ("column", "time", "classes")
#: What stands before a colon or a plus sign in the names of ours.
OURS = ("natural", *_DEALT, *_WITH_ARGUMENT)

#: A partitioner that is not ours: of (records, schema, sites, rng, alpha) the rows of each site, in order or by the sites' names.
#: It must leave patients whole, may leave some out, and must draw from ``rng`` alone.
Dealer = Callable[[pd.DataFrame, Schema, int, np.random.Generator, float], Sequence[Ints] | Mapping[str, Ints]]


@dataclass(frozen=True)
class Plan:
    """A partitioner's name, read: its base and the argument after the colon, the pooling threshold, the shifts.

    ``others``: whose partitioner it is where it is not ours, by its name; empty for ours.
    """

    base: str
    argument: str
    pool: int
    shifts: tuple[str, ...]
    others: str = ""

    @property
    def by_records(self) -> bool:
        """Whether the records name the sites (natural or column)."""
        return self.base in ("natural", "column")

    @property
    def may_lack_classes(self) -> bool:
        """Whether a site may have one class only, because the records or the partitioner make it so."""
        return self.by_records or self.base in ("classes", "time") or self.others != ""


def check_partitioner(name: str) -> Plan:
    """The plan that ``name`` stands for; raises ConfigError unless it is as this module says."""
    rest, pool, shifts = name, 0, list[str]()
    while "+" in rest:
        before, _, suffix = rest.rpartition("+")
        if suffix in SHIFTS and suffix not in shifts:
            shifts.insert(0, suffix)
        elif suffix.startswith("pool:") and suffix[5:].isdecimal() and int(suffix[5:]) > 0 and not pool:
            pool = int(suffix[5:])
        else:
            break
        rest = before
    base, _, argument = rest.partition(":")
    built_in = rest in ("natural", *_DEALT) or (base in _WITH_ARGUMENT and argument != "")
    if built_in and base == "classes":
        built_in = argument.isdecimal() and int(argument) > 0
    brought = [plugin.name for plugin in claims("partitioners", OURS) if not plugin.problem]
    others = not built_in and base not in OURS and (argument.isidentifier() or rest in brought)
    if not built_in and not others:
        raise ConfigError(
            f"Partitioner {name!r} is unknown; allowed are {', '.join((*PARTITIONERS, *brought))} or package.module:Name, with "
            f"+pool:N, +bias or +units after them.{nearest(rest, ('natural', *_DEALT, *brought))}"
        )
    plan = Plan(base, argument, pool, tuple(shifts), rest if others else "")
    if pool and not plan.by_records:
        raise ConfigError(f"Partitioner {name!r} must not pool; +pool:N goes with natural or column:NAME only.")
    return plan


def partition(
    records: pd.DataFrame, schema: Schema, name: str, sites: int, seed: int, alpha: float = 1.0
) -> dict[str, pd.DataFrame]:
    """Return the records of each site: those of its rows (``partition_rows``), as the site measures them, renumbered from 0.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        name: The partitioner's name, as the module's head describes it.
        sites: The number of sites, as in ``partition_rows``.
        seed: Of the random generator, at least 0.
        alpha: The partitioner's parameter, as in ``partition_rows``.

    Raises:
        ConfigError: As ``partition_rows``, and where no feature can be measured differently.
    """
    rows_by_site = partition_rows(records, schema, name, sites, seed, alpha)
    records = measure(records, schema, name, rows_by_site, seed, alpha)
    return {site: records.iloc[rows].reset_index(drop=True) for site, rows in rows_by_site.items()}


def measure(
    records: pd.DataFrame, schema: Schema, name: str, sites: dict[str, Ints], seed: int, alpha: float = 1.0
) -> pd.DataFrame:
    """Return the records after the shifts in ``name``: each site's rows as it measures them.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        name: The partitioner's name; without ``+bias`` or ``+units`` the records stay as they are.
        sites: Each site's row indices, by its name.
        seed: Of the random generator.
        alpha: The strength of a bias.

    Raises:
        ConfigError: For an unknown name, and where no feature can be measured differently.
    """
    for shift in check_partitioner(name).shifts:
        records = remeasure(records, schema, shift, sites, seed, alpha)
    return records


def partition_rows(
    records: pd.DataFrame, schema: Schema, name: str, sites: int, seed: int, alpha: float = 1.0, dealer: Dealer | None = None
) -> dict[str, Ints]:  # fmt: skip
    """Return the row indices of each site, by site name in sorted order; the same for the same arguments, on any machine.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        name: The partitioner's name, as the module's head describes it.
        sites: Number of sites; for natural and column:NAME the first so many in order of appearance, 0 for all.
        seed: Of the random generator, at least 0.
        alpha: Dirichlet concentration, the power law's exponent, feature-shift's overlap, or the strength of +bias.
        dealer: What ``name`` stands for where it is not ours.

    Raises:
        ConfigError: For an unknown name, too few or too many sites, a negative seed or alpha not positive.
        ConfigError: For a dealer that fails, splits a patient, or gives a row twice.
    """
    plan = check_partitioner(name)
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or greater.")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha is {alpha!r}; it must be a positive number.")
    if sites < (0 if plan.by_records else 1):
        raise ConfigError(f"sites is {sites}; it must be 1 or more{' (0 for all)' if plan.by_records else ''}.")
    from polyclinic.ehr.partition import dealt

    chosen = _rows_by_column(records, schema, plan, name, sites) if plan.by_records else {}
    if not plan.by_records:
        patients = dealt.people(records, schema)[2]
        if sites > patients:
            raise ConfigError(f"sites is {sites}, but there are {patients} patients; ask for no more sites than that.")
        rng = np.random.default_rng(np.random.SeedSequence([seed, *b"partition"]))
        if plan.others:
            deal = _dealt_by(dealer, records, schema, name, sites, rng, alpha)
        else:
            deal = _deal(records, schema, plan, sites, rng, alpha)
        chosen = dict(deal) if isinstance(deal, Mapping) else _name_hospitals(deal)
    return {site: chosen[site] for site in sorted(chosen)}


def _name_hospitals(deal: Sequence[Ints]) -> dict[str, Ints]:
    width = max(2, len(str(len(deal)))) if len(deal) > 9 else 1
    return {f"hospital-{i + 1:0{width}d}": rows for i, rows in enumerate(deal)}


def _rows_by_column(records: pd.DataFrame, schema: Schema, plan: Plan, name: str, sites: int) -> dict[str, Ints]:
    if plan.base == "natural" and schema.site is None:
        raise ConfigError(f"Schema {schema.name!r} has no site column, so partitioner 'natural' cannot be used.")
    from polyclinic.ehr.partition import dealt

    column = schema.site.name if plan.base == "natural" and schema.site else plan.argument
    groups = dealt.by_column(records, schema, column)
    if plan.pool:
        groups = dealt.pool_groups(groups, records, schema, plan.pool)
    if sites > len(groups):
        raise ConfigError(f"sites is {sites}, but partitioner {name!r} finds {len(groups)}; ask for no more.")
    return dict(list(groups.items())[: sites or None])


def _deal(
    records: pd.DataFrame, schema: Schema, plan: Plan, sites: int, rng: np.random.Generator, alpha: float
) -> Deal:
    from polyclinic.ehr.partition import dealt

    if plan.base == "time":
        return dealt.by_time(records, schema, plan.argument, sites)
    if plan.base == "classes":
        return dealt.classes(records, schema, sites, rng, int(plan.argument))
    deal: Deal = getattr(dealt, _DEALT[plan.base])(records, schema, sites, rng, alpha)
    return deal


def _dealt_by(
    dealer: Dealer | None, records: pd.DataFrame, schema: Schema, name: str, sites: int, rng: np.random.Generator, alpha: float
) -> Deal | dict[str, Ints]:  # fmt: skip
    """What another's partitioner gives, checked: it may be anything."""
    if dealer is None:
        raise ConfigError(f"Partitioner {name!r} needs the function that it names; it cannot be used here.")
    with failing(f"Partitioner {name!r} failed"):
        deal = dealer(records.copy(), schema, sites, rng, alpha)
        names = list(map(str, deal)) if isinstance(deal, Mapping) else []
        given = list(deal.values()) if isinstance(deal, Mapping) else list(deal)
        rows = [np.asarray(site_rows) for site_rows in given]
    from polyclinic.ehr.partition.dealt import people

    fault = _fault_of_names(names) or _fault(rows, people(records, schema)[0])
    if fault:
        raise ConfigError(f"Partitioner {name!r} {fault}.")
    rows_by_site = [np.sort(site_rows.astype(np.int64)) for site_rows in rows]
    return dict(zip(names, rows_by_site, strict=True)) if names else rows_by_site


def _fault_of_names(names: Sequence[str]) -> str:
    """What is wrong with the names of sites; empty if nothing is."""
    if len(set(names)) < len(names):
        return "gives two sites the same name"
    if bad := [name for name in names if not name.strip(" .") or not name.isprintable()]:
        return f"gives a site the name {bad[0]!r}; names are of letters that can be printed"
    return ""


def _fault(deal: list[Ints], person: Ints) -> str:
    """What is wrong with rows that were dealt; empty if nothing is."""
    if not deal:
        return "gives no site"
    for site_rows in deal:
        if site_rows.size == 0:
            return "leaves a site without a row"
        if site_rows.ndim != 1 or not np.issubdtype(site_rows.dtype, np.integer):
            return "must give each site's rows as a list of whole numbers"
        if site_rows.min() < 0 or site_rows.max() >= len(person):
            return f"gives a row that there is not; rows are 0 to {len(person) - 1}"
    rows = np.concatenate(deal)
    if len(np.unique(rows)) < len(rows):
        return "gives a row to two sites, or twice to one"
    site_of = np.full(int(person.max()) + 1, -1)
    for site, site_rows in enumerate(deal):
        if np.any((site_of[person[site_rows]] >= 0) & (site_of[person[site_rows]] != site)):
            return "splits a patient between two sites; give all rows of a patient to one"
        site_of[person[site_rows]] = site
    return ""
