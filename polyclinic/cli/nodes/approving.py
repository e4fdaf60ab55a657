"""What people at a hospital decide on runs: `polyclinic hospital pending`, `show`, `approve`, `deny`, `stop`, `pause`, `page`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyclinic.cli.nodes import deploying
from polyclinic.cli.nodes.deploying import Folder
from polyclinic.cli.terminal import Json, answer, loading, say, significant
from polyclinic.errors import count_text

if TYPE_CHECKING:
    from pathlib import Path

    from polyclinic.deployment.hospital import HospitalNode

_UNPROVEN = "the coordinator's word"
RunName = Annotated[str, typer.Argument(help="The run's name, as `pending` shows it.")]
Why = Annotated[str, typer.Option(help="Reason in one line, which the coordinator sees.")]


def pending(
    folder: Folder,
    every: Annotated[bool, typer.Option("--all", help="List runs that were decided on too.")] = False,
    as_json: Json = False,
) -> None:
    """The runs that wait for somebody here to approve or deny them."""
    with loading():
        from polyclinic.client.home.approvals import approvals
        from polyclinic.deployment.approving import DIGITS, facts

    node = _read(folder)
    listed = [facts(approval, node.policy) for approval in approvals(node.home)]
    listed = [run for run in listed if every or run["state"] == "pending"]
    headings = ("run", "terms", "state", "task", "model", "rounds", "epsilon", "asked")
    shown = deploying.listing(headings, [run | {"terms": run["terms"][:DIGITS]} for run in listed])
    none = "No run has asked." if every else "No run waits."
    answer(as_json, listed, shown if listed else none)
    if not node.policy.require_approval:
        deploying.warn(
            ["The policy has require-approval at false: runs that it allows begin without anybody's approval."]
        )


def show(folder: Folder, run: RunName, as_json: Json = False) -> None:
    """All terms of a run that asked: what it is, what leaves, what it would cost of the budget, and where it stands."""
    with loading():
        from polyclinic.client.home.approvals import approval_named
        from polyclinic.deployment.approving import facts, share_of_budget, spending

    node = _read(folder)
    shown = facts(approval_named(node.home, run), node.policy) | spending(node)
    standing = f"{run}: {shown['state']}{_decision(shown)}"
    if not shown["terms"]:
        answer(
            as_json, shown, standing, "It was stopped before it asked for approval here, so its settings are unknown."
        )
        return
    asks = "no privacy" if shown["epsilon"] is None else "keys of another version"
    if shown["epsilon"]:
        asks = f"ε = {shown['epsilon']:g}"
    share = share_of_budget(shown, shown["budget"])
    budget = "no limit" if shown["budget"] is None else f"{shown['budget']:g}"
    spent = "unbounded" if shown["spent"] is None else significant(shown["spent"])
    what = ", ".join(shown[name] for name in ("task", "model", "strategy") if shown[name])
    rounds = count_text(shown["rounds"], "round") if shown["rounds"] != "" else "rounds unknown"
    settings = [f"  {key} = {value!r}" for key, value in shown["settings"].items()]
    answer(
        as_json, shown, standing,
        f"It asks for {asks}; spent so far: {spent}; budget: {budget}{f', of which it asks for {share}' if share else ''}.",
        f"{what}, {rounds}", "What leaves:", *(f"  {sentence}" for sentence in shown["leaves"]),
        f"Submitted by: {shown['submitter'] or 'not said'} ({'signed' if shown['signed'] else _UNPROVEN})",
        f"Code: {shown['code']}", "All settings that are not usual:", *settings,
        f"`polyclinic hospital approve {folder} {run} --terms {shown['terms']}` lets it begin.",
    )  # fmt: skip


def approve(
    folder: Folder,
    run: RunName,
    terms: Annotated[str, typer.Option(help="Digest of the terms, with all digits, as `show` prints it.")],
    days: Annotated[
        float | None, typer.Option(help="For how many days the approval holds. Default: the policy's approval-days.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a run begin, or go on, under the terms that were shown; under others it waits anew."""
    _decide(folder, run, "approved", as_json, terms=terms, days=days)


def deny(
    folder: Folder,
    run: RunName,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Refuse a run, also one that was approved and has begun: nothing more is computed or charged for it."""
    _decide(folder, run, "denied", as_json, why=why)


def stop(folder: Folder, run: RunName, why: Why = "", as_json: Json = False) -> None:
    """Stop a run here, whether or not runs need an approval: nothing more is computed or charged for it. Others go on."""
    with loading():
        from polyclinic.client.home import approvals
        from polyclinic.deployment.approving import facts

    node = _read(folder)
    shown = facts(approvals.stop(node.home, run, why), node.policy)
    answer(as_json, shown, f"{run}: denied{_decision(shown)}", "Nothing more is computed or charged for it here.")


def pause(folder: Folder, why: Why = "", as_json: Json = False) -> None:
    """Hold up all runs here until `resume`: nothing is computed, charged or released meanwhile. The node stays connected."""
    with loading():
        from polyclinic.client.home import approvals
        from polyclinic.client.home.holds import current_pause

    home = _read(folder).home
    approvals.pause(home, why)
    answer(
        as_json,
        current_pause(home),
        "Paused: no run computes, charges or releases anything here until `resume`.",
    )


def resume(folder: Folder, as_json: Json = False) -> None:
    """End a pause: runs that still go on ask this hospital again in their next round."""
    with loading():
        from polyclinic.client.home import approvals

    approvals.resume(_read(folder).home)
    answer(as_json, {"resumed": True}, "Resumed.")


def _decide(
    folder: Path, run: str, state: Literal["approved", "denied"], as_json: bool, terms: str = "", days: float | None = None,
    why: str = "",
) -> None:  # fmt: skip
    with loading():
        from polyclinic.client.home.approvals import approval_named, decide
        from polyclinic.client.home.holds import current_pause
        from polyclinic.deployment.approving import facts

    node = _read(folder)
    before = approval_named(node.home, run).state
    days = node.policy.approval_days if days is None else days
    shown = facts(decide(node.home, run, terms, state, days, why), node.policy)
    again = "; it was denied before" if (before, state) == ("denied", "approved") else ""
    paused = [f"The hospital is paused: the run waits until `polyclinic hospital resume {folder}`."]
    held_up = paused if state == "approved" and current_pause(node.home) else []
    answer(as_json, shown, f"{run}: {state}{_decision(shown)}{again}", *held_up)


def page(
    folder: Folder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of this machine; 0 takes a free one.")] = 0,
) -> None:
    """Serve a page to this machine alone, on which runs are looked at, approved, denied and paused. Ends with Ctrl-C."""
    _read(folder)
    with loading():
        import secrets

        from polyclinic.serving.app import listen, serve
        from polyclinic.serving.approvals import approval_page
    listener = listen("127.0.0.1", port)
    token = secrets.token_urlsafe(24)
    say(f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/")
    say("Whoever has this address may decide here, until Ctrl-C; from elsewhere, forward the port by SSH.")
    serve(approval_page(folder, token), listener)


def _decision(shown: dict[str, Any]) -> str:
    """Who decided and until when it holds, to stand after the state; empty where nobody has."""
    if shown["state"] == "expired":
        return f"; approved by {shown['by']} until {shown['until']}"
    until = f", until {shown['until']}" if shown["until"] else ""
    return f" by {shown['by']} at {shown['decided']}{until}" if shown["decided"] else ""


def _read(folder: Path) -> HospitalNode:
    with loading():
        from polyclinic.deployment.hospital import HospitalNode

    return HospitalNode.read(folder)
