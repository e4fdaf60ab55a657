"""Digests by which releases and models are told apart."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import numpy as np

_encoded = json.JSONEncoder(sort_keys=True).encode


def digest(*parts: Any) -> str:
    """Identifies what is decided by the parts: plain values, and arrays by name. SHA-256 in hexadecimal."""
    hashed = sha256()
    for part in parts:
        if isinstance(part, dict) and all(isinstance(value, np.ndarray) for value in part.values()):
            for name, value in sorted(part.items()):
                hashed.update(array_bytes(name, value))
        else:
            hashed.update(_encoded(part).encode() + b"|")
    return hashed.hexdigest()


def array_bytes(name: str, value: np.ndarray) -> bytes:
    """An array's name, type, shape and numbers."""
    return f"{name}|{value.dtype}|{value.shape}|".encode() + np.ascontiguousarray(value).tobytes()
