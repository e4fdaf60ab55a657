"""Whole runs with secure aggregation: the same models as without, and a record of every byte that the server received."""

import html
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import SelfComposedDpEvent
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from polyclinic import Federation
from polyclinic.client.app import app
from polyclinic.client.home.identity import identity
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.secure.distributed import SumTerms
from polyclinic.privacy.secure.signatures import public_identity
from polyclinic.runs.simulation import simulated_sites
from polyclinic.server.federate import Outcome, Places, federate
from polyclinic.server.summary import summarise
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import (
    RECORD,
    SECURE,
    SECURE_CONFIRM,
    SECURE_KEYS,
    SECURE_SHARES,
    SECURE_UNMASK,
    SecureKeysRequest,
    TrainRequest,
)
from tests.client.test_hospital import context, make_hospital, message, model
from tests.secure.ward import is_uniform

Quick = Callable[..., RunResult]
SHORT: dict[str, Any] = {"rounds": 2, "training.local-steps": 2}
WHOLE = {"privacy.dp": False, "data.standardise": "none"}


class Recorder(Grid):
    """A LocalGrid's front that keeps every message in both directions; ``lost`` (type, node, turn) never arrive."""

    def __init__(self, grid: Grid, lost: Iterable[tuple[str, int, int]] = ()) -> None:
        self._grid, self._lost = grid, set(lost)
        self._turns: dict[str, int] = {}
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        self.sent += asked
        kind = asked[0].metadata.message_type if asked else ""
        self._turns[kind] = turn = self._turns.get(kind, 0) + 1
        replies = [
            reply for reply in self._grid.send_and_receive(asked, timeout=timeout)
            if (kind, reply.metadata.src_node_id, turn) not in self._lost
        ]  # fmt: skip
        self.received += replies
        return replies

    def of(self, kind: str) -> list[Message]:
        return [reply for reply in self.received if reply.metadata.message_type == kind]

    def asked(self, kind: str) -> list[Message]:
        return [message for message in self.sent if message.metadata.message_type == kind]

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self._grid.create_message(*arguments, **named)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return self._grid.run


def recorded(
    folder: Path, lost: Iterable[tuple[str, int, int]] = (), resume: bool = False, **options: Any
) -> tuple[Recorder, Outcome]:
    """A run of the embedded dataset whose every message is kept."""
    config = RunConfig.build(SHORT | options)
    folder.mkdir(exist_ok=True)
    grid = Recorder(LocalGrid(AppReference("polyclinic.client_app"), len(simulated_sites(config)), config.flat()), lost)
    outcome = federate(
        grid, config, "run", Places(folder / "sites", folder / "checkpoint.pt", folder / "server-ledger.sqlite"),
        resume=resume,
    )  # fmt: skip
    return grid, outcome


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], atol: float) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], atol=atol)


def models(folder: Path, **options: Any) -> tuple[Outcome, Outcome]:
    """The outcomes without and with secure aggregation."""
    dropouts = options.pop("secure.dropouts", 0)
    _, plain = recorded(folder / "plain", **options)
    _, secure = recorded(folder / "secure", secure={"aggregation": True, "dropouts": dropouts}, **options)
    return plain, secure


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"privacy.dp": False},
        {
            "strategy": "fedadam",
            "training.optimizer": "adam",
            "training.learning-rate": 0.01,
            "dataset": "trial",
            "sites": 3,
            "model": "mlp",
        },
    ],
)
def test_a_secure_run_gives_the_plain_runs_model_within_rounding(tmp_path: Path, options: dict[str, Any]) -> None:
    plain, secure = models(tmp_path, **options)
    # FedAdam divides a difference by as little as its tau, 1e-3, and moves by 0.1 of that.
    assert_close(secure.state.arrays, plain.state.arrays, atol=1e-4 if "strategy" in options else 2e-6)
    assert secure.state.epsilon == plain.state.epsilon and not secure.state.dropouts


@pytest.mark.slow
def test_heart_disease_in_its_four_hospitals(tmp_path: Path, heart_disease: None) -> None:
    plain, secure = models(tmp_path, dataset="heart-disease")
    assert_close(secure.state.arrays, plain.state.arrays, atol=2e-6)


@pytest.mark.slow
def test_workers_change_nothing(quick: Quick) -> None:
    alone, two = quick(secure={"aggregation": True}), quick(secure={"aggregation": True}, workers=2)
    assert alone.summary["model_sha256"] == two.summary["model_sha256"]


def test_all_that_the_server_receives_of_training_is_uniform_words_and_what_it_knew(tmp_path: Path) -> None:
    """Every reply of every exchange, field by field."""
    grid, outcome = recorded(
        tmp_path, dataset="trial", sites=3, model="mlp", secure={"aggregation": True}, privacy={"dp": False}
    )
    size = sum(value.size for value in outcome.state.arrays.values())
    assert len(grid.of("train")) == 6
    for reply in grid.of("train"):
        assert set(reply.content) == {"arrays", "metrics", RECORD}
        assert set(reply.content[RECORD]) == {"site", "epsilon", "delta"}
        arrays = from_record(reply.content["arrays"])  # type: ignore[arg-type]
        assert set(arrays) == {"masked"} and arrays["masked"].shape == (size,) and is_uniform(arrays["masked"])
        # The only number beside is the same for all.
        assert dict(reply.content["metrics"]) == {"num-examples": 1.0}
    for kind, names in (
        (SECURE_KEYS, {"sealing", "mask", "commitment", "identity", "signature"}),
        (SECURE_SHARES, {"sealed", "terms", "signature"}),
        (SECURE_CONFIRM, {"question", "outcome", "signature"}),
        (SECURE_UNMASK, {"shares"}),
    ):
        assert len(grid.of(kind)) == 6
        for reply in grid.of(kind):
            assert set(reply.content) == {SECURE, RECORD} and set(reply.content[RECORD]) == {"site"}
            assert {k: v.dtype for k, v in from_record(reply.content[SECURE]).items()} == dict.fromkeys(names, np.uint8)  # type: ignore[arg-type]
    together = np.concatenate([from_record(r.content[SECURE])["sealed"].ravel() for r in grid.of(SECURE_SHARES)])  # type: ignore[arg-type]
    assert is_uniform(together[together != 0])  # a hospital's row for itself is empty


@pytest.mark.parametrize("kind", [SECURE_KEYS, SECURE_SHARES, "train"])
def test_a_tolerated_drop_out_gives_the_plain_runs_model_without_that_hospital(tmp_path: Path, kind: str) -> None:
    # Without momentum, of which a hospital whose reply was lost would have kept some, and one that was not asked none.
    _, plain = recorded(tmp_path / "plain", [("train", 2, 1), ("train", 3, 2)], training={"momentum": 0.0})
    lost = [(kind, 2, 1), (kind, 3, 2)]
    _, secure = recorded(
        tmp_path / "secure", lost, secure={"aggregation": True, "dropouts": 1}, training={"momentum": 0.0}
    )
    assert_close(secure.state.arrays, plain.state.arrays, atol=2e-6)
    assert secure.state.dropouts == plain.state.dropouts


@pytest.mark.parametrize("kind", [SECURE_KEYS, SECURE_SHARES, "train", SECURE_CONFIRM, SECURE_UNMASK])
def test_one_drop_out_more_than_tolerated_stops_the_run_in_one_sentence(tmp_path: Path, kind: str) -> None:
    lost = [(kind, 2, 1), (kind, 3, 1)]
    with pytest.raises(
        PolyclinicError,
        match=r"^Round 1.*: 2 hospitals replied, the secure sum needs 3\. hospital-2, hospital-3: no reply within",
    ):
        recorded(tmp_path, lost, secure={"aggregation": True, "dropouts": 1})


def test_a_simulated_round_with_too_few_changes_no_model_and_the_run_goes_on(quick: Quick, tmp_path: Path) -> None:
    trace = tmp_path / "away.csv"
    trace.write_text("round,site\n1,hospital-2\n1,hospital-3\n")
    result = quick(simulation={"availability": str(trace)}, secure={"aggregation": True, "dropouts": 1})
    assert result.summary["rounds"] == 2
    assert set(result.sites["rounds_joined"]) == {1}
    (told,) = result.summary["unchanged"]
    assert (told["round"], told["charged"], told["central"]) == (1, ["hospital-1", "hospital-4"], False)
    (note,) = [note for note in result.summary["notes"] if "changed no model" in note]
    assert note.startswith("Round 1: 2 hospitals replied, the secure sum needs 3.")
    assert note.endswith("though 2 hospitals charged their ledgers for it.")
    assert note in html.unescape((result.path / "report.html").read_text())


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_sum_that_was_not_opened_is_told_with_all_that_was_charged_for_it(tmp_path: Path, noise: float) -> None:
    """Of four masked updates of round 2 the shares that open their sum are lost. With noise the server has charged its sum."""
    lost = [(SECURE_UNMASK, 2, 2), (SECURE_UNMASK, 3, 2)]
    options: dict[str, Any] = {
        "secure.aggregation": True,
        "secure.dropouts": 1,
        "simulation.round-deadline": 1e6,
        "rounds": 3,
    }
    _, outcome = recorded(
        tmp_path,
        lost,
        privacy={"dp": not noise},
        secure={"noise": noise},
        data={"standardise": "none" if noise else "public"},
        **options,
    )
    summary = summarise(outcome, tmp_path, tmp_path / "sites")
    (told,) = summary["unchanged"]
    assert (told["round"], len(told["charged"]), told["central"]) == (2, 4, noise > 0)
    (note,) = [note for note in summary["notes"] if "changed no model" in note]
    assert note.startswith("Round 2, removing masks: 2 hospitals replied, the secure sum needs 3.")
    assert ("4 hospitals charged" in note, "server's ledger was charged" in note) == (not noise, noise > 0)
    assert set(outcome.state.joined.values()) == {2}


class Dying(FedAvg):
    """Stops the server once, when the sum of round ``at`` was opened and its checkpoint not yet written."""

    associative = True
    at = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if server_round == Dying.at:
            Dying.at = 0
            raise KeyboardInterrupt
        return super().aggregate_train(server_round, replies)


def died(folder: Path, at: int, **options: Any) -> dict[str, Any]:
    """The options of a run that died in round ``at``, to go on with."""
    Dying.at = at
    options |= {"secure.aggregation": True, "secure.dropouts": 1, "strategy": f"{__name__}:Dying"}
    with pytest.raises(KeyboardInterrupt):
        recorded(folder, **options)
    return options


def test_a_round_that_died_after_its_sum_was_opened_is_run_again_to_the_same_model(tmp_path: Path) -> None:
    """All five phases of round 2 were answered; the server dies before its checkpoint, and asks all again."""
    _, whole = recorded(tmp_path / "whole", secure={"aggregation": True, "dropouts": 1}, training={"optimizer": "adam"})
    options = died(tmp_path / "dies", at=2, training={"optimizer": "adam"})
    _, resumed = recorded(tmp_path / "dies", resume=True, **options)
    assert_close(resumed.state.arrays, whole.state.arrays, atol=0)
    for ledger in Ledger.read_all(tmp_path / "dies" / "sites" / "ledger.sqlite").values():
        assert [event["round"] for event in ledger.events() if event["purpose"] == "train"] == [1, 2]


def test_a_run_whose_budgets_leave_too_few_for_a_sum_keeps_the_rounds_before(tmp_path: Path) -> None:
    options = died(tmp_path, at=1)
    path = tmp_path / "sites" / "ledger.sqlite"
    for number in (1, 2):  # under a larger budget than the run's, whose own then has no room for both
        terms = replace(Ledger.read(path, f"hospital-{number}").terms, budget=9.0)
        Ledger.open_all(path, [terms])[0].charge(gaussian_event(5.0), "elsewhere", "other", 1)
    _, outcome = recorded(tmp_path, resume=True, **options)
    assert outcome.state.round == 1 and "2 hospitals replied, the secure sum needs 3" in str(outcome.state.stopped)


def test_the_same_question_has_the_same_masks_and_another_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    grid, _ = recorded(tmp_path, secure={"aggregation": True, "dropouts": 1}, rounds=1)
    question = grid.asked("train")[0]
    first = next(m for m in grid.of("train") if m.metadata.src_node_id == question.metadata.dst_node_id)
    before = Ledger.read(tmp_path / "sites" / "ledger.sqlite", "hospital-1").events()
    again = grid.send_and_receive([question])[0]
    np.testing.assert_array_equal(*(from_record(m.content["arrays"])["masked"] for m in (first, again)))  # type: ignore[arg-type]
    arrays = from_record(question.content["arrays"])  # type: ignore[arg-type]
    question.content["arrays"] = ArrayRecord({name: Array(value + 1) for name, value in arrays.items()})
    other = grid.send_and_receive([question])[0]
    assert other.has_error() and "already answered to another question" in str(other.error.reason)
    assert Ledger.read(tmp_path / "sites" / "ledger.sqlite", "hospital-1").events() == before


def test_noise_in_the_sum_is_charged_to_whole_hospitals_once_a_round(quick: Quick) -> None:
    result = quick(secure={"aggregation": True, "noise": 1.0, "dropouts": 1, "clip_norm": 0.5}, **WHOLE)
    terms = SumTerms(62, 0.5, result.config.secure.bits, 4, 3, 1.0)
    central = result.privacy["central"]
    assert central["unit"] == "hospital" and central["noise_multiplier"] == 1.0
    events = Ledger.read(result.path / "server-ledger.sqlite").events()
    assert [(event["purpose"], event["round"]) for event in events] == [("secure-sum", 1), ("secure-sum", 2)]
    assert central["epsilon"] == pytest.approx(epsilon(SelfComposedDpEvent(terms.event(4), 2), 1e-3), rel=1e-6)
    assert result.summary["statement"]["central"]["epsilon"] == pytest.approx(central["epsilon"])
    assert any("the server learned each round's sum alone" in note for note in result.summary["notes"])


@pytest.mark.slow
def test_the_comparison_is_made_without_secure_sums(quick: Quick, tmp_path: Path) -> None:
    federation = Federation.from_dataset("breast-cancer", out=str(tmp_path))
    result = federation.run(comparison=True, secure={"aggregation": True, "dropouts": 1}, **SHORT)
    assert result.summary["comparison"]["alone"]["sites"]["hospital-1"]["auroc"] is not None


@pytest.mark.slow
@pytest.mark.flower
def test_flower_gives_the_model_of_the_engine_here(as_json: Callable[..., Any], quick: Quick, tmp_path: Path) -> None:
    keys = ["rounds=2", "training.local-steps=2", "secure.aggregation=true", "secure.dropouts=1", f'out="{tmp_path}"']
    summary = as_json("flower", "run", *(part for key in keys for part in ("-c", key)))
    theirs, ours = RunResult.read(summary["run"]), quick(secure={"aggregation": True, "dropouts": 1})
    for name, value in ours.arrays.items():
        np.testing.assert_allclose(theirs.arrays[name].numpy(), value.numpy(), atol=2e-6)
    assert theirs.privacy["epsilon"] == pytest.approx(ours.privacy["epsilon"], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strategy": "fedmedian"}, "'strategy' has the value 'fedmedian'"),
        ({"strategy": "scaffold", "training.momentum": 0.0}, "would leave without masks"),
        ({"strategy_options": "weighted-by-key='steps'"}, "weighted by num-examples"),
        ({"participation.sampling": "poisson"}, "set participation.sampling to 'fixed'"),
        ({"secure.dropouts": 2}, "'secure.dropouts' has the value 2, but of 4 hospitals"),
        ({"participation.sites": 1}, "'secure.dropouts' has the value 0, but of 1 hospital in"),
        ({"upload.precision": "half"}, "compressed uploads"),
        ({"secure.noise": 1.0}, "give privacy.patients-per-site a public number"),
        ({"secure.noise": 1e-9, "secure.bits": 8, **WHOLE}, "too coarse for noise"),
        ({"central.epsilon": 1.0, **WHOLE}, "give secure.noise"),
        ({"secure.aggregation": False, "secure.noise": 1.0}, "secure.aggregation is false"),
    ],
)
def test_what_cannot_be_summed_is_refused_before_anything_is_spent(
    quick: Quick, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        quick(**{"secure.aggregation": True} | options)
    assert not list(tmp_path.rglob("ledger.sqlite"))


@pytest.mark.parametrize("known", [(), ("east",), ("east", "north", "west")])
def test_real_hospitals_sum_from_their_own_homes(tmp_path: Path, known: tuple[str, ...]) -> None:
    """Three hospital files, noise and masks from the system's entropy; asked again, a hospital gives the same words."""
    config = RunConfig(
        secure={"aggregation": True, "noise": 1.0}, data={"standardise": "none"}, privacy={"patients_per_site": 150,
        "epsilon": 2.0}, rounds=2, training={"local_steps": 2}, sites=3, participation={"min_sites": 2},
    )  # fmt: skip
    grid = Recorder(LocalGrid(AppReference("polyclinic.client_app"), 3, config.flat()))
    for node, name in enumerate(("east", "north", "west"), start=1):
        (tmp_path / name).mkdir()
        hospital = make_hospital(tmp_path / name, "budget = 2.0\ndelta = 1e-3\nonly-secure-aggregation = true\n")
        hospital.write_text(hospital.read_text().replace("St. Elsewhere", name))
        grid._grid._contexts[node].node_config = {"hospital": str(hospital)}  # type: ignore[attr-defined]
    for name in known:
        listed = [public_identity(identity(tmp_path / one / "home")).hex() for one in ("east", "north", "west")]
        with (tmp_path / name / "hospital.toml").open("a") as file:
            file.write(f"known-hospitals = {json.dumps(listed)}\n")
    outcome = federate(grid, config, "run", Places(tmp_path / "none", server_ledger=tmp_path / "server-ledger.sqlite"))
    assert outcome.state.joined == {"east": 2, "north": 2, "west": 2} and not outcome.state.dropouts
    notes = " ".join(summarise(outcome, tmp_path, tmp_path / "none")["notes"])
    assert (f"{3 - len(known)} of 3 hospitals have no list of the others' keys" in notes) == (len(known) < 3)
    assert all(np.isfinite(value).all() for value in outcome.state.arrays.values())
    assert not list(tmp_path.rglob("secure-*"))
    for name in ("east", "north", "west"):
        events = Ledger.read(tmp_path / name / "home" / "ledger.sqlite").events()
        assert [event["round"] for event in events] == [1, 2]
    question, first = grid.asked("train")[-1], grid.of("train")[-1]
    again = grid.send_and_receive([question])[0]
    np.testing.assert_array_equal(*(from_record(m.content["arrays"])["masked"] for m in (first, again)))  # type: ignore[arg-type]
    assert len(Ledger.read(tmp_path / "west" / "home" / "ledger.sqlite").events()) == 2


def test_a_policy_may_let_updates_leave_in_secure_sums_alone(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 2.0\ndelta = 1e-3\nonly-secure-aggregation = true\n")
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5)
    plain = app(message(request, "train", model()), context(hospital))
    assert plain.has_error() and "secure aggregation only" in str(plain.error.reason)
    config = RunConfig(training={"local_steps": 3, "sample_rate": 0.2}, secure={"aggregation": True})
    alone = app(message(request, "train", model()), context(hospital, config))
    assert alone.has_error() and "no secrets of this round" in str(alone.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


POOR = 'budget = 2.0\ndelta = 1e-3\nallowed-models = ["logistic"]\n'


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"secure.aggregation": False}, "secure.aggregation at false"),
        ({"model": "mlp"}, "the policy allows the models logistic, not 'mlp'"),
        ({"task": "synthesis", "model": "marginals"}, "the policy allows the tasks"),
        ({"privacy.dp": False}, "does not allow training or statistics without privacy"),
        ({"secure.shared-noise": True, "training.local-steps": 1}, "does not allow shared noise"),
    ],
)
def test_keys_for_a_sum_that_the_policy_refuses_leave_no_file(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    hospital = make_hospital(tmp_path, POOR)
    config = RunConfig.build({"secure.aggregation": True, "privacy.patients-per-site": 100} | options)
    reply = app(message(SecureKeysRequest(run="r", site=0, round=1), SECURE_KEYS), context(hospital, config))
    assert reason in str(reply.error.reason)
    assert not list((tmp_path / "home").glob("*secure-*"))


def test_keys_asked_for_again_and_again_leave_a_bounded_number_of_files(tmp_path: Path) -> None:
    """Runs that never train: a hundred rounds' keys are kept, and forgotten after thirty days; a round that trained stays."""
    hospital, config = make_hospital(tmp_path, POOR), RunConfig.build({"secure.aggregation": True})
    home = tmp_path / "home"

    def ask(run: str, round: int = 1) -> Message:
        request = SecureKeysRequest(run=run, site=0, round=round)
        return app(message(request, SECURE_KEYS), context(hospital, config))

    assert not ask("trained").has_error()
    (home / "release-trained-train-000001.safetensors").touch()
    for number in range(100):
        assert not ask(f"run-{number}").has_error()
    refused = ask("one-more")
    assert "asked for the keys of 100 other rounds without training" in str(refused.error.reason)
    assert len(list(home.glob("secure-*"))) == 101 and len(list(home.glob("release-*-secure-keys-*"))) == 101
    assert not ask("run-7").has_error()  # what was answered before is answered again
    old = time.time() - 31 * 24 * 3600
    for path in home.glob("*run-*secure-*"):
        os.utime(path, (old, old))
    for path in [*home.glob("secure-run-*"), *home.glob("release-run-*")]:
        if "-run-7-" not in path.name:
            os.utime(path, (old, old))
    assert not ask("one-more").has_error()
    left = {path.name for path in home.glob("secure-*")}
    assert left == {f"secure-{run}-000001.safetensors" for run in ("trained", "run-7", "one-more")}
