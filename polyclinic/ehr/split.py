"""A split by patient that does not move when rows or patients are added: each patient's side is a hash of the id."""

from __future__ import annotations

from hashlib import blake2b


def split_position(patient_id: str, salt: str = "polyclinic") -> float:
    """A number in [0, 1) fixed by the patient's id and the salt; blake2b keyed by the salt."""
    key = blake2b(salt.encode(), digest_size=32).digest()
    return int.from_bytes(blake2b(patient_id.encode(), digest_size=8, key=key).digest(), "big") / 2.0**64


def is_test_patient(patient_id: str, fraction: float, salt: str = "polyclinic") -> bool:
    """Whether a patient belongs to the test side, which holds about ``fraction`` of all patients."""
    return split_position(patient_id, salt) < fraction
