"""A question to all hospitals of a coordinator: a run of its SuperLink that asks in place of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.deployment.control import Caller
from polyclinic.deployment.coordinator import Coordinator
from polyclinic.deployment.submitting import folders_by_run, submit
from polyclinic.releases.kinds import answer_of_json, question_as_key
from polyclinic.releases.question import Question


@dataclass(frozen=True)
class Coordinated:
    """The hospitals of a coordinator, whose folder is on this machine. say: What is done with each line of the run's log."""

    coordinator: Coordinator
    say: Callable[[str], None]

    def ask(self, question: Question) -> dict[str, Any]:
        """Their answer, each by its own policy and ledger, as ``asking.ask`` gives it.

        Raises PolyclinicError where no hospital answers or the SuperLink refuses the run.
        """
        sent = submit(Caller(self.coordinator), {"question": question_as_key(question)}, True, None, self.say)
        folder = folders_by_run(Path(sent["out"]))[sent["run"]]
        return answer_of_json(json.loads(folder.answer_file.read_text(encoding="utf-8")))
