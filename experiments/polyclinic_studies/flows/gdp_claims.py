"""The noise, mu and epsilon that Su, Wang, Schiavazzi and Liu 2023 print for their flows, and what those numbers are worth.

Their accounting is Gaussian differential privacy by its central limit theorem (Bu, Dong, Long and Su 2020), for one patient
added or removed. It is an approximation, shown here beside bounds that hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import Relation
from polyclinic.privacy.accounting.comparison import shown_epsilon
from polyclinic.privacy.accounting.composition import clt_mu, gdp_epsilon

RELATIONS: tuple[Relation, ...] = ("add-remove", "replace-one")
CLOSE = 0.005  # the paper prints two or three digits


@dataclass(frozen=True)
class Claim:
    """One line of the paper: ``steps`` of Poisson sampled sums at ``sample_rate``, and the epsilon claimed at ``delta``.

    noise_multiplier: sigma, noise over the clip norm.  patients: in training.  runs: trained on the same patients at this
    budget, of which each was charged alone.  mu: as printed; more than one where the paper's text and table differ.
    """

    experiment: str
    noise_multiplier: float
    sample_rate: float
    steps: int
    delta: float
    epsilon: float
    mu: tuple[float, ...]
    patients: int
    runs: int


def _ehr(noise: float, epsilon: float, mu: float) -> Claim:
    return Claim("health records", noise, 0.5, 8000, 0.01, epsilon, (mu,), patients=64, runs=50)


def _regression(noise: float, epsilon: float, *mu: float) -> Claim:
    return Claim("regression", noise, 1 / 12, 8000, 1e-5, epsilon, mu, patients=6000, runs=1)


PAPER: tuple[Claim, ...] = (
    _ehr(7.36, 32, 6.10), _ehr(11.44, 16, 3.92), _ehr(18.28, 8, 2.45), _ehr(29.93, 4, 1.49),
    _regression(1.30, 50, 6.58, 6.68), _regression(6.68, 5), _regression(14.88, 2), _regression(27.82, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A claim and what accounting says of it, were every sum really clipped and noised as claimed.

    mu: of the limit theorem.  epsilon: by relation and accountant: "gdp" (approximate), "pld" and "rdp" (upper bounds), and
    "prv" (upper bound; add-remove only).  together: pld's epsilon of all runs on the same patients, add-remove.
    """

    claim: Claim
    mu: float
    epsilon: dict[Relation, dict[str, float]]
    together: float

    @property
    def holds(self) -> bool:
        """Whether the claim is an upper bound for one patient added or removed in one run, to the digits printed."""
        return self.epsilon["add-remove"]["pld"] <= self.claim.epsilon * (1 + CLOSE)

    @property
    def holds_replaced(self) -> bool:
        """The same for one patient replaced by another."""
        return self.epsilon["replace-one"]["pld"] <= self.claim.epsilon * (1 + CLOSE)

    @property
    def leaks_someone(self) -> bool:
        """Whether delta times the patients is at least a half: what publishes a random patient's record would pass."""
        return self.claim.delta * self.claim.patients >= 0.5


def line(claim: Claim) -> Line:
    """Everything about one claim. Raises ConfigError for values that cannot be accounted."""
    if claim.runs < 1:
        raise ConfigError(f"runs must be at least 1, got {claim.runs}.")
    terms = claim.sample_rate, claim.noise_multiplier
    found: dict[Relation, dict[str, float]] = {}
    for relation in RELATIONS:
        accountants = ("gdp", "pld", "rdp", "prv") if relation == "add-remove" else ("gdp", "pld", "rdp")
        found[relation] = {
            name: shown_epsilon(name, *terms, claim.steps, claim.delta, relation) for name in accountants
        }
    together = found["add-remove"]["pld"]
    if claim.runs > 1:
        together = shown_epsilon("pld", *terms, claim.steps * claim.runs, claim.delta)
    return Line(claim, clt_mu(*terms, claim.steps), found, together)


def duality_gap(claim: Claim) -> float:
    """How far, relatively, the claimed epsilon is from that of the claimed noise by the paper's own formula."""
    mu = clt_mu(claim.sample_rate, claim.noise_multiplier, claim.steps)
    return gdp_epsilon(mu, claim.delta) / claim.epsilon - 1


# Why no line of the paper is a guarantee of what its authors released, whatever the accounting.
UNACCOUNTED: tuple[tuple[str, str], ...] = (
    ("batch norm between the blocks", "one record's gradient depends on the whole batch, so clipping it bounds nothing; the "
     "running means and variances are released without noise"),
    ("imputation before training", "chained equations fill each patient's gaps from all patients, and their draws have no noise"),
    ("attributes and bounds", "chosen by looking at the records"),
    ("many runs", "5 imputations x 10 flows at each of four budgets are charged one by one"),
    ("the batch's own size", "sums are divided by the number that was drawn, which one patient changes"),
    ("hyper-parameters", "searched on the same records"),
)  # fmt: skip
