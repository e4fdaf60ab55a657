"""Health records: schemas, encoding, shards, partitioners and built-in datasets; knows nothing of training."""

from polyclinic.ehr.encoding import Encoded, decode, encode, feature_names, nullable_mask, standardised_mask
from polyclinic.ehr.partition import PARTITIONERS, partition
from polyclinic.ehr.schema import Column, Kind, Role, Schema
from polyclinic.ehr.shard import Rows, Shard, build_shard
from polyclinic.ehr.sources import read_records

__all__ = [
    "PARTITIONERS",
    "Column",
    "Encoded",
    "Kind",
    "Role",
    "Rows",
    "Schema",
    "Shard",
    "build_shard",
    "decode",
    "encode",
    "feature_names",
    "nullable_mask",
    "partition",
    "read_records",
    "standardised_mask",
]
