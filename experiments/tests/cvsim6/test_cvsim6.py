"""CVSim-6 against its published outputs, scipy's solver, a plain loop, finite differences and conservation of blood."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from polyclinic.errors import ConfigError
from polyclinic_studies.cvsim6 import (
    NAMES,
    OUTPUTS,
    PARAMETERS,
    beginning,
    circuit,
    measured,
    outputs,
    parameters,
    simulate,
)
from polyclinic_studies.cvsim6.circuit_loop import array_path, pressure_path, pressure_rates

# Harrod et al. 2020, supplement, validation_EHR.txt: the defaults, and r_a half as large again.
PUBLISHED = {
    "sbp": (102.538, 133.413),
    "dbp": (71.808, 103.867),
    "co": (4.861, 4.533),
    "svr": (1448.999, 2112.413),
    "cvp": (0.061, 0.057),
    "rv_diastolic": (-2.134, -2.182),
    "rv_systolic": (20.405, 20.279),
    "lv_diastolic": (2.462, 3.347),
    "lv_systolic": (103.164, 133.979),
    "dpap": (9.968, 10.493),
    "spap": (19.980, 19.883),
    "wedge": (8.456, 9.149),
}
TWO = {"r_a": torch.tensor([1.0, 1.5])}


@pytest.fixture(scope="module")
def original() -> torch.Tensor:
    return measured(parameters(TWO), original=True)


@pytest.fixture(scope="module")
def corrected() -> torch.Tensor:
    return measured(parameters(TWO))


def of(found: torch.Tensor, name: str) -> list[float]:
    return found[:, OUTPUTS.index(name)].tolist()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_outputs_of_both_parameter_sets(name: str, original: torch.Tensor) -> None:
    assert of(original, name) == pytest.approx(PUBLISHED[name], abs=2.5e-3)


def test_the_published_volumes_and_resistance(original: torch.Tensor) -> None:
    expected = {"lv_esv": 57.2, "lv_edv": 124.6, "lvef": 54.1, "pvr": 107.0}
    for name, value in expected.items():
        assert of(original, name)[0] == pytest.approx(value, rel=0.01)


def test_corrected_outputs_are_pressures_where_the_original_has_flows(corrected: torch.Tensor) -> None:
    assert of(corrected, "cvp")[0] == pytest.approx(7.10, abs=0.02)
    assert of(corrected, "pv_peak_pg")[0] == pytest.approx(1.79, abs=0.02)
    # The definition: what drives the mean flow over that flow is the resistance itself, in a cycle that closes.
    assert of(corrected, "svr") == pytest.approx([1333.22, 1.5 * 1333.22], rel=2e-3)


def test_a_ring_loses_no_blood() -> None:
    volumes = simulate(parameters(TWO), beats=3, steps=200).volumes.sum(1)
    assert torch.allclose(volumes, torch.tensor(5000.0, dtype=volumes.dtype), atol=1e-8, rtol=0)
    old = simulate(parameters(), beats=2, steps=200, original=True).volumes.sum(1)
    assert torch.allclose(old, torch.tensor(4997.867, dtype=old.dtype), atol=1e-3, rtol=0)


def start(row: torch.Tensor) -> np.ndarray:
    model = circuit(row)
    return model.pressures(beginning(model), model.resting)[:, 0].numpy()


def test_against_scipy_on_the_equations_of_the_literature() -> None:
    row = parameters({"hr": 88.0, "r_a": 0.8, "c_l_dia": 8.0})
    trace = simulate(row, beats=2, steps=800)
    times = trace.seconds[::40, 0].numpy()
    exact = solve_ivp(
        pressure_rates, (0, times[-1]), start(row), "LSODA", times, args=(row[0].tolist(),), rtol=1e-8, atol=1e-8,
        max_step=5e-3,
    )  # fmt: skip
    assert trace.pressures[::40, :, 0].numpy() == pytest.approx(exact.y.T, abs=0.02)


def test_against_a_loop_over_scalars() -> None:
    batch = parameters({"r_a": torch.tensor([0.7, 1.4]), "c_a": torch.tensor([1.2, 2.0])})
    trace = simulate(batch, beats=1, steps=1000)
    for i, row in enumerate(batch):
        path = pressure_path(start(row[None]), row.tolist(), 1000, 60 / 72 / 1000)
        assert trace.pressures[:, :, i].numpy() == pytest.approx(np.array(path), abs=0.02)


def test_against_a_loop_over_arrays_of_the_same_equations() -> None:
    row = parameters({"r_ri": 0.06, "hr": 80.0})
    trace = simulate(row, beats=1, steps=400)
    path = array_path(trace.stressed[0, :, 0].numpy(), row[0].tolist(), 400, 60 / 80 / 400)
    assert trace.stressed[:, :, 0].numpy() == pytest.approx(path, abs=1e-8)


def test_a_batch_is_its_members() -> None:
    batch = parameters({"hr": torch.tensor([60.0, 95.0]), "c_v": torch.tensor([80.0, 120.0])})
    alone = torch.cat([measured(row[None], beats=2, steps=300) for row in batch])
    assert torch.allclose(measured(batch, beats=2, steps=300), alone, atol=1e-10)


def test_gradients_against_differences() -> None:
    values = torch.tensor([1.0, 1.6], dtype=torch.float64, requires_grad=True)

    def wedge_and_pressure(v: torch.Tensor) -> torch.Tensor:
        given = parameters({"r_a": v[:1], "c_a": v[1:]})
        return measured(given, ("sbp", "wedge", "co"), beats=2, steps=100)[0]

    gradients = torch.autograd.functional.jacobian(wedge_and_pressure, values)
    for i in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[i] = 1e-5
        with torch.no_grad():
            difference = (wedge_and_pressure(values + step) - wedge_and_pressure(values - step)) / 2e-5
        assert torch.allclose(gradients[:, i], difference, rtol=1e-3, atol=1e-4)


def test_where_it_begins_every_part_passes_one_stroke() -> None:
    row = parameters({"r_a": 1.3})
    model = circuit(row)
    stressed = beginning(model)
    p_a, p_v, p_pa, p_pv = model.pressures(stressed, model.resting)[[1, 2, 4, 5], 0].tolist()
    assert (p_a - p_v) / 1.3 == pytest.approx((p_pa - p_pv) / 0.08)
    assert float((stressed + model.unstressed).sum()) == pytest.approx(5000)


def test_halving_the_step_changes_nothing_that_matters() -> None:
    coarse, fine = (measured(parameters(), beats=3, steps=n) for n in (500, 1000))
    assert torch.allclose(coarse, fine, rtol=2e-3, atol=0.05)


def test_defaults_lie_within_their_limits() -> None:
    assert len(PARAMETERS) == 23
    assert all(p.low < p.default < p.high for p in PARAMETERS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"r_x": 1.0}, "must be one of"),
        ({"r_a": -1.0}, "parameter r_a must be finite and positive"),
        ({"p_th": float("nan")}, "parameter p_th must be finite."),
        ({"r_a": torch.ones(2), "c_a": torch.ones(3)}, r"one length, got \[2, 3\]"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parameters(given)


def test_bad_requests_are_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'wedge'"):
        measured(parameters(), ("wedg",))
    with pytest.raises(ConfigError, match=r"\(batch, 23\), got \(1, 22\)"):
        simulate(parameters()[:, :22])
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        simulate(parameters(), beats=0)


def test_outputs_are_in_their_order() -> None:
    trace = simulate(parameters({"hr": 61.0}), beats=1, steps=50)
    assert outputs(trace).shape == (1, len(OUTPUTS))
    assert float(outputs(trace)[0, 0]) == pytest.approx(61.0)
    assert NAMES[0] == "hr"
