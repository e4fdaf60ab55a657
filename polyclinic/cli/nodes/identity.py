"""``polyclinic identity``: the public key by which other hospitals know this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, loading


def identity(
    hospital: Annotated[Path, typer.Argument(help="The hospital.toml of a real hospital.")],
    as_json: Json = False,
) -> None:
    """Print a hospital's public key, for the known-hospitals of the others' policies; made in its home if there is none."""
    with loading():
        from polyclinic.client import identity as keys
        from polyclinic.client.policy import HospitalFile
        from polyclinic.privacy.signatures import public_identity

    described = HospitalFile.read(hospital)
    key = public_identity(keys.identity(hospital.resolve().parent / described.home)).hex()
    answer(as_json, {"site": described.site, "public_key": key}, key)
