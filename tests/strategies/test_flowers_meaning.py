"""Under Polyclinic's rounds a strategy means what it means under Flower's, or is refused before anything is spent."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from polyclinic import LocalHalf, Sites, Trained
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger
from polyclinic.server.progress import Progress

Quick = Callable[..., RunResult]
Aggregated = tuple[ArrayRecord | None, MetricRecord | None]


class Quorum(FedAvg):
    """Keeps the model in its second round, as Flower's strategies do by returning None."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return (None, None) if server_round == 2 else (arrays, metrics)


def test_none_keeps_the_model(quick: Quick) -> None:
    plain = {"strategy": Quorum, "privacy": {"dp": False}}
    one, two, three = (quick(rounds=rounds, **plain) for rounds in (1, 2, 3))
    assert one.summary["model_sha256"] == two.summary["model_sha256"] != three.summary["model_sha256"]
    assert [left["round"] for left in two.summary["unchanged"]] == [2]
    assert two.summary["unchanged"][0]["reason"].endswith("Quorum kept the model as it was.")
    assert (two.sites["rounds_joined"] == 2).all()
    # Hospitals worked in that round, and paid for it.
    private = quick(strategy=Quorum)
    assert private.privacy["epsilon"] == pytest.approx(quick().privacy["epsilon"])
    assert (private.rounds[private.rounds["round"] == 2]["bytes_up"] > 0).any()


def spread(replies: Any, weighted_by: str) -> MetricRecord:
    """A ``train_metrics_aggr_fn`` as users write it: no mean."""
    steps = [record["metrics"]["steps"] for record in replies]
    return MetricRecord({"replies": len(steps), "most-steps": max(steps), "each": [float(value) for value in steps]})


class Measures(FedAvg):
    """Takes functions for metrics, and adds one in ``aggregate_train``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(train_metrics_aggr_fn=spread, **options)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert metrics is not None
        metrics["twice"] = 2.0 * server_round
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        return MetricRecord({"evaluations": len(list(replies))})


def test_what_a_strategy_measures_is_kept_in_each_round_and_told(quick: Quick, tmp_path: Path) -> None:
    result = quick(strategy=Measures, rounds=2, tracking={"tool": "tensorboard"})
    table = result.strategy_metrics
    assert table.index.tolist() == [(n, phase) for n in (1, 2) for phase in ("train", "evaluate")]
    assert table.loc[(2, "train"), ["replies", "most-steps", "twice"]].tolist() == [4.0, 2.0, 4.0]
    assert table.loc[(2, "evaluate"), "evaluations"] == 4 and table.loc[(1, "train"), "each"] == [2.0] * 4
    lines = [json.loads(line) for line in (result.path / "history.jsonl").read_text().splitlines()]
    assert [line["strategy"]["round"] for line in lines if "strategy" in line] == [1, 2]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(result.path / "tensorboard"))
    events.Reload()
    assert {"strategy-train/twice", "strategy-train/replies", "strategy-evaluate/evaluations"} <= set(
        events.Tags()["scalars"]
    )
    report = (result.path / "report.html").read_text()
    assert "What the strategy measured" in report and '<th scope="row">twice</th>' in report
    assert "What the strategy measured" not in (quick().path / "report.html").read_text()


CALLS: list[int] = []


def norm(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
    """An ``evaluate_fn`` as users write it; it finds nothing in round 1."""
    CALLS.append(server_round)
    length = float(sum(np.square(array.numpy()).sum() for array in arrays.values()))
    return None if server_round == 1 else MetricRecord({"norm": length})


def test_an_evaluate_fn_sees_the_model_before_round_1_and_after_each(quick: Quick) -> None:
    CALLS.clear()
    result = quick(evaluation={"function": norm}, rounds=3)
    assert CALLS == [0, 1, 2, 3] and result.config.evaluation.function == f"{__name__}:norm"
    found = result.strategy_metrics.xs("server", level="phase")["norm"]
    assert found.index.tolist() == [0, 2, 3] and found[0] == 0.0
    model = sum(float((value**2).sum()) for name, value in result.arrays.items() if "standardiser" not in name)
    assert found[3] == pytest.approx(model)
    # It costs nothing and changes nothing.
    plain = quick(rounds=3)
    assert result.summary["model_sha256"] == plain.summary["model_sha256"]
    assert result.privacy["epsilon"] == plain.privacy["epsilon"]
    assert "What the strategy measured" in (result.path / "report.html").read_text()


def test_a_resumed_run_evaluates_what_is_left(quick: Quick) -> None:
    class Stops(Progress):
        def on_round(self, config: RunConfig, state: Any) -> None:
            if state.round == 2:
                raise KeyboardInterrupt

    CALLS.clear()
    with pytest.raises(KeyboardInterrupt) as stopped:
        quick(evaluation={"function": norm}, rounds=3, progress=Stops())
    folder = str(stopped.value.__notes__[0]).split("folder is ")[1].split(";")[0]
    result = Federation.resume(folder)
    assert CALLS == [0, 1, 2, 3]
    assert result.strategy_metrics.xs("server", level="phase").index.tolist() == [0, 2, 3]


def broken(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    raise RuntimeError(f"no test set for round {server_round}")


def words(server_round: int, arrays: ArrayRecord) -> dict[str, str]:
    return {"verdict": "good"}


def three(server_round: int, arrays: ArrayRecord) -> Any:
    return 3.0


def scalars(server_round: int, arrays: ArrayRecord) -> dict[str, Any]:
    return {"rate": np.float32(0.5), "count": np.int64(server_round)}


def test_numpys_numbers_are_numbers(quick: Quick) -> None:
    result = quick(evaluation={"function": scalars}, rounds=1)
    assert result.strategy_metrics.loc[(1, "server"), ["rate", "count"]].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (broken, "which failed in round 0: RuntimeError: no test set for round 0."),
        (words, "which failed in round 0: "),
        (three, "it gives float, not a MetricRecord, a mapping of names to numbers, or None."),
        ("nowhere:norm", "which does not load: ModuleNotFoundError"),
        ("norm", "has the value 'norm', which must be package.module:Name."),
        (f"{__name__}:CALLS", "which is not callable."),
    ],
)
def test_an_evaluate_fn_that_fails_does_so_before_anything_is_spent(
    quick: Quick, tmp_path: Path, function: Any, told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(evaluation={"function": function})
    assert "Configuration key 'evaluation.function' has the value" in str(refused.value) and told in str(refused.value)
    assert not list(tmp_path.rglob("ledger.sqlite"))


class OwnStart(FedAvg):
    def start(self, *arguments: Any, **options: Any) -> Any:
        return super().start(*arguments, **options)


class ClippedAtClients(DifferentialPrivacyClientSideFixedClipping):
    def __init__(self, **options: Any) -> None:
        super().__init__(FedAvg(**options), 0.1, 1.0, 4)


class ClippedMoreOrLess(DifferentialPrivacyClientSideAdaptiveClipping):
    def __init__(self, **options: Any) -> None:
        super().__init__(FedAvg(**options), 0.1, 4)


class Around(FedAvg):
    """A strategy with another, which counts on the mod, in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = ClippedAtClients(**options)


class ClippedHere(DifferentialPrivacyServerSideFixedClipping):
    def __init__(self, **options: Any) -> None:
        super().__init__(FedAvg(**options), 1e-6, 1.0, 4)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (OwnStart, "has a start of its own, which the round loop would not call; put what it does into configure_train and "
         "aggregate_train, or run it in a Flower app of its own by `polyclinic simulate`."),
        (ClippedAtClients, "counts on a mod at hospitals that clips their models; for privacy of whole hospitals take "
         "central.epsilon, or Flower's DifferentialPrivacyServerSideFixedClipping."),
        (ClippedMoreOrLess, "or Flower's DifferentialPrivacyServerSideAdaptiveClipping."),
        (Around, "The strategy Around counts on a mod at hospitals"),
    ],
)  # fmt: skip
def test_what_cannot_mean_the_same_is_refused_before_anything_is_spent(
    quick: Quick, tmp_path: Path, strategy: type, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(strategy=strategy)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("ledger.sqlite"))


# ---- what a strategy tells hospitals


def telling(change: Callable[..., Any], **parts: Any) -> type[FedAvg]:
    """FedAvg whose ``configure_train`` first calls ``change(config)``, and then ``change(message)`` of each message."""

    class Tells(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
            change(config, grid)
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for message in messages:
                change(message, grid)
            return messages

    return type("Tells", (Tells,), parts)


def tells_epochs(what: Any, _grid: Any) -> None:
    if isinstance(what, ConfigRecord):
        what["local-epochs"] = 3


def adds_arrays(what: Any, _grid: Any) -> None:
    if isinstance(what, Message):
        what.content["extra"] = what.content["arrays"]


def renames(what: Any, _grid: Any) -> None:
    if isinstance(what, Message):
        what.metadata.message_type = "train.careful"


def asks(what: Any, grid: Any) -> None:
    if isinstance(what, ConfigRecord):
        grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])


TellsEpochs, AddsArrays, Renames, Asks = (telling(change) for change in (tells_epochs, adds_arrays, renames, asks))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TellsEpochs", "hospitals 'local-epochs', which they would not follow; they follow server-round, lr, proximal-mu."),
        ("AddsArrays", "sends hospitals the record 'extra', which they would not look at; a half of the strategy's gets arrays "
         "by the name 'beside.extra' (receives)"),
        ("Renames", "sends messages of the type 'train.careful', which hospitals do not answer in a round; they answer 'train'."),
        ("Asks", "The strategy sends messages by itself, which hospitals do not answer in a run"),
    ],
)  # fmt: skip
def test_what_hospitals_would_not_look_at_is_refused_before_anything_is_spent(
    quick: Quick, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(strategy=f"{__name__}:{name}")
    assert words in str(refused.value) and "\n" not in str(refused.value)
    ledgers = [ledger for path in tmp_path.rglob("ledger.sqlite") for ledger in Ledger.read_all(path).values()]
    assert not any(ledger.events() for ledger in ledgers)


@dataclass(frozen=True)
class Slower(LocalHalf):
    """Goes a share of each step that the strategy tells."""

    takes = ("share",)

    def round(self, sites: Sites) -> Trained:
        models = sites.model
        for _ in range(sites.settings.local_steps):
            models = sites.step(models, sites.gradient(models) * sites.config["share"])
        return Trained(models)


class Falls(FedAvg):
    """Tells its half a share that falls."""

    Local = Slower

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        config["share"] = 1.0 if server_round == 1 else 0.0
        return super().configure_train(server_round, arrays, config, grid)


class Forgets(FedAvg):
    """Tells its half nothing."""

    Local = Slower


def test_numbers_reach_a_half_that_takes_them(quick: Quick) -> None:
    plain: dict[str, Any] = {"privacy": {"dp": False}, "training.momentum": 0.0}
    one, two = (quick(strategy=Falls, rounds=rounds, **plain).arrays["0.weight"] for rounds in (1, 2))
    torch.testing.assert_close(one, two)
    assert not torch.allclose(two, quick(rounds=2, **plain).arrays["0.weight"], atol=1e-3)
    with pytest.raises(PolyclinicError, match="Message field 'share' of the strategy's configuration is None"):
        quick(strategy=Forgets)


# ---- what a strategy keeps, when a run goes on


class WithOptimizer(FedAvg):
    """FedAvg whose server steps along the mean change with torch's Adam, and draws noise for it from NumPy."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model = torch.nn.Parameter(torch.zeros(62))
        self.optimizer = torch.optim.Adam([self.model], lr=0.05)
        self.rng, self.seen, self.kind = np.random.default_rng(3), deque([b"begun"], maxlen=None), Path("configuration")

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        self.sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        flat = [np.concatenate([part.numpy().ravel() for part in record.values()]) for record in (self.sent, arrays)]
        with torch.no_grad():
            self.model.copy_(torch.from_numpy(flat[0]).float())
        self.model.grad = torch.from_numpy(flat[0] - flat[1] + 0.01 * self.rng.normal(size=len(flat[0]))).float()
        self.optimizer.step()
        self.seen.append(str(server_round).encode())
        assert [int(one) for one in list(self.seen)[1:]] == list(range(1, server_round + 1))
        new, at = self.model.detach().numpy(), 0
        for name, part in arrays.items():
            size = part.numpy().size
            arrays[name] = Array(new[at : at + size].reshape(part.numpy().shape))
            at += size
        return arrays, metrics


class SaysItself(WithOptimizer):
    """The same by methods of its own, with something in it that no checkpoint could hold."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = threading.Lock()

    def state(self) -> dict[str, Any]:
        moments = self.optimizer.state_dict()
        return {"moments": moments, "draws": self.rng.bit_generator.state, "seen": [*self.seen]}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["moments"])
        self.rng.bit_generator.state = state["draws"]
        self.seen = deque(state["seen"])


class Locked(FedAvg):
    """Keeps what no checkpoint can hold, from the start."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = threading.Lock()


class MakesAnew(Locked):
    """The same, and says that a resumed run makes it anew."""

    not_saved = ("lock",)


class LockedLater(FedAvg):
    """Makes it in its first round."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        self.lock = threading.Lock()
        return super().aggregate_train(server_round, replies)


class Stops(Progress):
    def on_round(self, config: RunConfig, state: Any) -> None:
        if state.round == 2:
            raise KeyboardInterrupt


def stopped(quick: Quick, out: Path, **options: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        quick(out=str(out), progress=Stops(), rounds=4, **options)
    return next(path for path in out.iterdir() if path.is_dir())


@pytest.mark.parametrize("strategy", [WithOptimizer, SaysItself])
def test_what_a_strategy_keeps_comes_back_when_a_run_goes_on(quick: Quick, tmp_path: Path, strategy: type) -> None:
    options: dict[str, Any] = {"strategy": strategy, "privacy": {"dp": False}}
    whole = quick(rounds=4, **options).summary["model_sha256"]
    assert Federation.resume(stopped(quick, tmp_path / "stopped", **options)).summary["model_sha256"] == whole


def test_what_no_checkpoint_can_hold_is_refused_before_anything_is_spent(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"Locked has lock \(lock\), which no checkpoint can hold; give the strategy the methods"
    ):
        quick(strategy=Locked)
    assert not list(tmp_path.rglob("ledger.sqlite"))
    assert quick(strategy=MakesAnew).summary["rounds"] == 2


def test_a_run_whose_strategy_made_it_later_ends_but_does_not_go_on(quick: Quick, tmp_path: Path) -> None:
    assert quick(strategy=LockedLater).summary["rounds"] == 2
    folder = stopped(quick, tmp_path / "stopped", strategy=LockedLater)
    with pytest.raises(DataError, match=r"cannot go on: its strategy has lock \(lock\), which it made after it began"):
        Federation.resume(folder)


def test_clipping_at_the_server_runs(quick: Quick) -> None:
    assert quick(strategy=ClippedHere).summary["rounds"] == 2
