"""The comparison of strategies: every configuration is possible, differences are paired, and epsilon holds."""

from typing import Any

import pytest

from polyclinic.config import RunConfig
from polyclinic.server.calibration import calibrate
from polyclinic_studies.federations.personalised import (
    CLAIMS,
    PRIVACY,
    SPLITS,
    WAYS,
    Choice,
    Split,
    blocks,
    claims_table,
    configuration,
    differences,
    floor,
    measure,
    plot,
    read_choices,
    split_table,
    tables,
    verdict,
)

SMALL = Split(
    "breast cancer", {"dataset": "breast-cancer", "sites": 3, "privacy.delta": 1e-3, "training.sample-rate": 0.2}
)


def _runs(*accuracies: float, epsilon: float | None = None) -> list[dict[str, Any]]:
    return [
        {"seed": seed, "accuracy": one, "auroc": one, "epsilon": epsilon, "noise_multiplier": 1.0}
        for seed, one in enumerate(accuracies)
    ]


def test_every_way_has_a_choice_that_makes_a_possible_configuration() -> None:
    choices = read_choices()
    for split in SPLITS:
        for terms in PRIVACY:
            assert set(choices[split.name][terms]) == set(WAYS)
            for name, choice in choices[split.name][terms].items():
                config = RunConfig.build(configuration(split, WAYS[name], choice, terms != PRIVACY[0], 0, 20))
                assert config.privacy.dp is (terms != PRIVACY[0]) and (choice.value is not None) is bool(
                    WAYS[name].option
                )


@pytest.mark.parametrize("name", ["FedAvg, unequal steps", "FedBN, layer norm", "Ditto", "alone"])
def test_a_private_run_keeps_its_epsilon(name: str) -> None:
    choice = Choice(0.3, *WAYS[name].grid[:1])
    found = measure(configuration(SMALL, WAYS[name], choice, True, 0, 2))
    assert found["epsilon"] is not None and 2.9 < found["epsilon"] <= 3.0
    assert found["accuracy"] is not None and 0 <= found["accuracy"] <= 1


@pytest.mark.parametrize(
    ("name", "passes"), [("Ditto", 2), ("APFL", 2), ("Per-FedAvg", 2), ("MR-MTL", 1), ("FedRep", 1)]
)
def test_noise_is_of_all_the_gradients_that_a_strategy_asks_for(name: str, passes: int) -> None:
    plain = configuration(SMALL, WAYS["FedAvg"], Choice(0.3), True, 0, 20) | {"training.local-steps": 5 * passes}
    way = configuration(SMALL, WAYS[name], Choice(0.3, *WAYS[name].grid[:1]), True, 0, 20)
    noise = [calibrate(RunConfig.build(options)).noise_multiplier for options in (way, plain)]
    assert noise[0] == pytest.approx(noise[1], rel=1e-3)


def test_the_floor_is_the_commoner_label_of_each_hospital() -> None:
    assert 0.5 < floor(SMALL, 0) < 0.9


def test_differences_are_paired_by_seed() -> None:
    ways = {"one": _runs(0.75, 1.0), "other": _runs(0.5, 0.5)}
    assert differences(ways, "one", "other") == [0.25, 0.5]


@pytest.mark.parametrize(
    ("apart", "word"), [([0.1, 0.11, 0.12], "seen"), ([-0.1, -0.11, -0.12], "reversed"), ([0.1, -0.1], "not seen")]
)
def test_a_difference_counts_at_three_standard_errors(apart: list[float], word: str) -> None:
    assert verdict(apart) == word


def test_seeds_are_reported_in_blocks_of_twelve() -> None:
    accuracies = [0.5 + seed / 100 for seed in range(24)]
    rows = {"heart disease": {terms: {name: _runs(*accuracies, epsilon=2.9) for name in WAYS} for terms in PRIVACY}}
    floors = {"heart disease": [0.5] * 12 + [0.6] * 12}
    first, second = blocks(rows)
    assert [row["seed"] for row in second["heart disease"]["ε = 3"]["FedAvg"]] == list(range(12, 24))
    assert claims_table(first, "auroc").count("\n") == 2 + len(CLAIMS) and "not seen" in claims_table(first, "auroc")
    assert "| FedAvg | 0.555 ± 0.010 | +0.000 ± 0.000 |" in split_table(first["heart disease"])
    assert (
        "seeds 12 to 23; each hospital's own commoner label has accuracy 0.600" in tables(rows, floors)
        and len(plot(first).axes) == 1
    )
