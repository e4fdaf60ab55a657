"""Write what follows from ``RunConfig``: the key reference in docs/ and Flower's default config in pyproject.toml.

``python docs/generate.py`` writes both; a test compares them with what is committed.
"""

from __future__ import annotations

from pathlib import Path

import tomli_w

from polyclinic.config import RunConfig

ROOT = Path(__file__).resolve().parent.parent
MARK = "# GENERATED from RunConfig by `make generate`; a test keeps the two equal.\n"


def pyproject(text: str) -> str:
    """``text`` with the section [tool.flwr.app.config] replaced by the defaults of ``RunConfig``."""
    head, rest = text.split(MARK, 1)
    tail = rest[rest.index("\n[") :] if "\n[" in rest else ""
    return head + MARK + tomli_w.dumps(RunConfig().flat()) + tail


def reference() -> str:
    """The table of configuration keys, in Markdown."""
    rows = ["# Configuration keys", "", "Generated from `RunConfig`. The same keys are read from a TOML file "
            "(`polyclinic run FILE`), from `-c KEY=VALUE`, and from Flower's `--run-config`; a flag of "
            "`polyclinic run` has the name of its key.", "", "| key | default | meaning |", "|---|---|---|"]  # fmt: skip
    for name, field in RunConfig.model_fields.items():
        default = (
            str(field.default).lower() if isinstance(field.default, bool) else repr(field.default).replace("'", '"')
        )
        rows.append(
            f"| `{name.replace('_', '-')}` | `{default}` | {(field.description or '').replace('|', chr(92) + '|')} |"
        )
    return "\n".join(rows) + "\n"


def main() -> None:
    path = ROOT / "pyproject.toml"
    path.write_text(pyproject(path.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs/reference/configuration.md").write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
