"""Mods around hospitals' answers: what they see and may change, what the policy allows, and what becomes of one that fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from polyclinic.client.app import app
from polyclinic.client.home.journal import NAME
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.lines import read_lines
from polyclinic.wire.messages import RECORD, REFUSED, EnrolRequest, StatisticsRequest
from tests.client.test_enrolment import RUN, enrol
from tests.client.test_hospital import CONFIG, STRICT, context, ledger, make_hospital, message, train

Quick = Callable[..., RunResult]
Next = Callable[[Message, Context], Message]
HERE = __name__
SEEN: list[tuple[str, dict[str, Any], Any]] = []


def watch(asked: Message, seen: Context, call_next: Next) -> Message:
    reply = call_next(asked, seen)
    arrays = {} if reply.has_error() else reply.content.array_records.get("arrays", {})
    SEEN.append((asked.metadata.message_type, dict(seen.node_config), {n: a.numpy().copy() for n, a in arrays.items()}))
    return reply


def zeros(asked: Message, seen: Context, call_next: Next) -> Message:
    """Lets nothing of the model leave, and lies about the ledger."""
    reply = call_next(asked, seen)
    if "arrays" in reply.content.array_records:
        for name, value in list(reply.content["arrays"].items()):
            reply.content["arrays"][name] = Array(np.zeros_like(value.numpy()))
        reply.content[RECORD]["epsilon"] = 0.0
    return reply


def rounded(asked: Message, seen: Context, call_next: Next) -> Message:
    reply = call_next(asked, seen)
    for record in reply.content.array_records.values() if asked.metadata.message_type == "train" else ():
        for name, value in list(record.items()):
            record[name] = Array(value.numpy().round(2))
    return reply


def twice(asked: Message, seen: Context, call_next: Next) -> Message:
    call_next(asked, seen)
    return call_next(asked, seen)


def fails(asked: Message, seen: Context, call_next: Next) -> Message:
    if asked.metadata.message_type == "train":
        raise OSError("/srv/records.csv")
    return call_next(asked, seen)


def stays_silent(asked: Message, seen: Context, call_next: Next) -> Message:
    """As a hospital where the run is stopped between the last round's training and its evaluation."""
    if asked.metadata.message_type == "evaluate" and asked.content[RECORD]["round"] == 2:
        raise OSError
    return call_next(asked, seen)


def gives_nothing(asked: Message, seen: Context, call_next: Next) -> Any:
    return None if asked.metadata.message_type == "train" else call_next(asked, seen)


def allowing(folder: Path, *names: str) -> Path:
    listed = ", ".join(f'"{name}"' for name in names)
    return make_hospital(folder, f"{STRICT}allowed-mods = [{listed}]\n")


def with_mods(*mods: str) -> RunConfig:
    return CONFIG.with_values({"mods": ", ".join(mods)})


def test_a_mod_sees_what_leaves_with_its_noise_and_not_where_the_files_are(tmp_path: Path) -> None:
    SEEN.clear()
    hospital = allowing(tmp_path, f"{HERE}:watch")
    reply = train(hospital, config=with_mods(f"{HERE}:watch"))
    kind, config, arrays = SEEN.pop()
    assert kind == "train" and config == {}
    assert all(np.array_equal(value.numpy(), arrays[name]) for name, value in reply.content["arrays"].items())
    assert reply.content["metrics"]["steps"] == 3 and ledger(hospital).epsilon() > 0


def test_the_ledgers_word_leaves_as_the_hospital_said_it(tmp_path: Path) -> None:
    hospital = allowing(tmp_path, f"{HERE}:zeros")
    reply = train(hospital, config=with_mods(f"{HERE}:zeros"))
    assert not any(value.numpy().any() for value in reply.content["arrays"].values())
    assert reply.content[RECORD]["epsilon"] == pytest.approx(ledger(hospital).epsilon(), rel=0.01)
    # What the journal tells apart is what left.
    (tmp_path / "other").mkdir()
    other = make_hospital(tmp_path / "other")
    assert train(other).content["arrays"]
    digests = [read_lines(place / "home" / NAME).entries[-1]["digest"] for place in (tmp_path, tmp_path / "other")]
    assert digests[0] != digests[1]


def test_a_mod_that_asks_twice_gets_the_same_answer_for_one_charge(tmp_path: Path) -> None:
    hospital = allowing(tmp_path, f"{HERE}:twice")
    train(hospital, config=with_mods(f"{HERE}:twice"))
    (tmp_path / "other").mkdir()
    other = make_hospital(tmp_path / "other")
    train(other)
    assert ledger(hospital).epsilon() == ledger(other).epsilon() and len(ledger(hospital).events()) == 1


def test_a_mod_that_the_policy_does_not_allow_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    hospital, config = make_hospital(tmp_path), RunConfig.build(RUN, {"mods": "logging, there.is.none:mod"})
    said = str(enrol(hospital, config).content[RECORD]["refusal"])
    words = "the policy allows the mods logging, size, not 'there.is.none:mod'."
    assert said == words
    request = StatisticsRequest(run="r", site=0, noise_multiplier=5.0)
    reply = app(message(request, "query.statistics"), context(hospital, config))
    assert reply.error.code == REFUSED and reply.error.reason == f"St. Elsewhere: {words}"
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    allowed = enrol(allowing(tmp_path, "logging"), RunConfig.build(RUN, {"mods": "logging"}))
    assert allowed.content[RECORD]["refusal"] == ""


def test_a_round_after_which_no_hospital_can_be_evaluated_is_one_that_is_done(quick: Quick) -> None:
    result = quick(mods={"evaluate": [stays_silent]})
    last = result.rounds[result.rounds["round"] == 2]
    assert result.summary["rounds"] == 2 and set(last["site"]) == set(result.sites.index)
    assert last["bytes_up"].gt(0).all() and last["loss"].isna().all()


@pytest.mark.parametrize("mod", ["fails", "gives_nothing"])
def test_a_mod_that_fails_is_one_sentence_without_a_path(tmp_path: Path, mod: str) -> None:
    reply = train(allowing(tmp_path, f"{HERE}:{mod}"), config=with_mods(f"{HERE}:{mod}"))
    assert reply.error.reason == f"the mod '{HERE}:{mod}' failed; the hospital's own log says why"


def test_built_in_mods_tell_kinds_and_sizes_in_the_log_and_change_nothing(
    tmp_path: Path, quick: Quick, caplog: pytest.LogCaptureFixture
) -> None:
    assert quick(mods=["logging", "size"]).summary["model_sha256"] == quick().summary["model_sha256"]
    assert sum(record.getMessage().startswith("Mod size: 'train'") for record in caplog.records) == 8
    caplog.clear()
    with caplog.at_level("INFO", "flwr"):
        train(make_hospital(tmp_path), config=with_mods("logging", "size"))
        train(
            tmp_path / "hospital.toml",
            config=with_mods("evaluate=size", "train=logging"),
            round=2,
            noise_multiplier=0.1,
        )
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Mod ")]
    assert said[0] == "Mod size: 'train': 280 bytes of arrays came, 280 leave"
    assert said[1].startswith("Mod logging: 'train' answered in ") and said[1].endswith(
        "s with metrics, polyclinic, arrays"
    )
    assert len(said) == 3 and "s with an error: " in said[2]


@pytest.mark.slow
def test_mods_of_ones_own_run_in_a_simulation_in_order_whatever_the_workers(quick: Quick) -> None:
    SEEN.clear()
    noisy = quick(mods=[watch, rounded], privacy={"dp": False})
    assert noisy.config.mods == f"{HERE}:watch, {HERE}:rounded"
    sent = [arrays for kind, _, arrays in SEEN if kind == "train"]
    assert len(sent) == 8
    for arrays in sent:  # the outermost is the last to see it
        assert arrays and all(np.array_equal(value, value.round(2)) for value in arrays.values())
    two = Federation.from_config(noisy.config).run(workers=2, pictures=False)
    assert two.summary["model_sha256"] == noisy.summary["model_sha256"]


def answers(name: str, change: Callable[[Message, Context, Next], Message]) -> Any:
    """A mod that does so to messages of training and lets others pass."""

    def mod(asked: Message, seen: Context, call_next: Next) -> Message:
        return change(asked, seen, call_next) if asked.metadata.message_type == "train" else call_next(asked, seen)

    mod.__name__ = mod.__qualname__ = name
    return mod


def _spends(asked: Message, seen: Context, call_next: Next) -> Message:
    reply = call_next(asked, seen)
    for number in (2, 3):
        asked.content[RECORD]["round"] = number
        seen.run_config["training.local-steps"] = 30
        call_next(asked, seen)
    return reply


def _stands_in(asked: Message, seen: Context, call_next: Next) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"epsilon": 0.0, "site": "Other"})}), reply_to=asked)


def _forgives(asked: Message, seen: Context, call_next: Next) -> Message:
    call_next(asked, seen)
    return _stands_in(asked, seen, call_next)


def _says_more(asked: Message, seen: Context, call_next: Next) -> Message:
    asked.content[RECORD]["round"] = 77
    reply = call_next(asked, seen)
    reply.content["more"] = ConfigRecord({"x": 1})
    reply.content["metrics"]["num-examples"] = 1e9
    return reply


def _takes_away(asked: Message, seen: Context, call_next: Next) -> Message:
    reply = call_next(asked, seen)
    del reply.content["arrays"]
    return reply


def _adds(asked: Message, seen: Context, call_next: Next) -> Message:
    for name, value in list(asked.content["arrays"].items()):
        asked.content["arrays"][name] = Array(value.numpy() + 1)
    return call_next(asked, seen)


def _refuses(asked: Message, seen: Context, call_next: Next) -> Message:
    return Message(Error(1, "/srv/secret of patient 7"), reply_to=asked)


def _exits(asked: Message, seen: Context, call_next: Next) -> Message:
    raise SystemExit(3)


spends, stands_in, forgives = (
    answers("spends", _spends),
    answers("stands_in", _stands_in),
    answers("forgives", _forgives),
)
says_more, takes_away, adds = (
    answers("says_more", _says_more),
    answers("takes_away", _takes_away),
    answers("adds", _adds),
)
refuses, exits = answers("refuses", _refuses), answers("exits", _exits)


def test_a_mod_cannot_have_the_hospital_spend_more(tmp_path: Path) -> None:
    rich = "budget = 10.0\ndelta = 1e-3\n"
    hospital = make_hospital(tmp_path, f'{rich}allowed-mods = ["{HERE}:spends"]\n')
    train(hospital, planned=4, config=with_mods(f"{HERE}:spends"))
    (tmp_path / "other").mkdir()
    other = make_hospital(tmp_path / "other", rich)
    train(other, planned=4)
    assert ledger(hospital).epsilon() == ledger(other).epsilon() and len(ledger(hospital).events()) == 1


@pytest.mark.parametrize(
    ("mod", "words"),
    [
        ("stands_in", "a mod answered in the hospital's place; the hospital's own log says why"),
        ("takes_away", "a mod took records of arrays away, or added some; the hospital's own log says why"),
        ("refuses", "a mod refused the message; the hospital's own log says why"),
        ("exits", f"the mod '{HERE}:exits' failed; the hospital's own log says why"),
    ],
)
def test_what_a_mod_may_not_do_is_an_error_and_the_journal_has_it(tmp_path: Path, mod: str, words: str) -> None:
    reply = train(allowing(tmp_path, f"{HERE}:{mod}"), config=with_mods(f"{HERE}:{mod}"))
    assert reply.has_error() and reply.error.reason == words
    entry = read_lines(tmp_path / "home" / NAME).entries[-1]
    assert entry["event"] == "failed" and entry["why"] == words


def test_a_refusal_of_the_hospital_stays_one(tmp_path: Path) -> None:
    reply = train(allowing(tmp_path, f"{HERE}:forgives"), config=with_mods(f"{HERE}:forgives"), noise_multiplier=0.1)
    assert reply.has_error() and reply.error.code == REFUSED


def test_all_but_arrays_leaves_as_the_hospital_said_it(tmp_path: Path) -> None:
    reply = train(allowing(tmp_path, f"{HERE}:says_more"), config=with_mods(f"{HERE}:says_more"))
    assert set(reply.content) == {"arrays", "metrics", RECORD} and reply.content["metrics"]["num-examples"] == 150.0
    assert [entry["round"] for entry in read_lines(tmp_path / "home" / NAME).entries] == [1, 1]


def test_nodes_do_not_share_what_a_mod_changes(quick: Quick) -> None:
    plain, changed = quick(), quick(mods=[adds, says_more])
    assert changed.summary["model_sha256"] == plain.summary["model_sha256"]
    with pytest.raises(PolyclinicError, match="a mod took records of arrays away, or added some: it leaves none"):
        quick(mods=takes_away)


def test_a_coordinator_of_another_privacy_format_is_told_so_in_spite_of_mods(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    strange = context(hospital)
    strange.run_config |= {"mods": "logging", "new.key": 1}
    reply = app(message(EnrolRequest(run="r", site=0, version="9.9.0", privacy_format=99), "query.enrol"), strange)
    assert "9.9.0" in str(reply.content[RECORD]["refusal"])


own_noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=0.9)


def test_flowers_own_mods_run_or_are_told_why_not(quick: Quick) -> None:
    options = {"rounds": 1, "data": {"standardise": "none"}}  # it wants messages with one record of arrays
    noisy, plain = quick(mods={"train": [own_noise]}, **options), quick(**options)
    assert noisy.config.mods == f"train={HERE}:own_noise"
    assert noisy.summary["model_sha256"] != plain.summary["model_sha256"]
    assert noisy.privacy["epsilon"] == plain.privacy["epsilon"], "what a mod does to what leaves costs nothing"
    with pytest.raises(PolyclinicError, match="No hospital could enrol: .*: fixedclipping_mod expects"):
        quick(mods=[fixedclipping_mod])
    with pytest.raises(
        ConfigError, match="Configuration key 'mods' has the value 'loging'; known are logging.*Did you mean"
    ):
        quick(mods="loging")
    with pytest.raises(ConfigError, match="which is not callable"):
        quick(mods=f"{HERE}:HERE")
    with pytest.raises(ConfigError, match="each alone or after train= or evaluate="):
        quick(mods="enrol=logging")
