"""How far patients can be told apart in a table, and tables in which they cannot by what an outsider is known to have.

k-anonymity and its kin say nothing of an outsider who knows more, and are no differential privacy.
"""

from polyclinic.ehr.anonymity.classes import Classes, Records, equivalence_classes, measures, spread, uniqueness
from polyclinic.ehr.anonymity.exposure import downstream_auroc, identifying, read_table, write_table
from polyclinic.ehr.anonymity.hierarchies import Hierarchy, read_hierarchies
from polyclinic.ehr.anonymity.linking import Linked, link
from polyclinic.ehr.anonymity.methods import Target
from polyclinic.ehr.anonymity.release import METHODS, Release, anonymise, fitting_schema

__all__ = [
    "METHODS",
    "Classes",
    "Hierarchy",
    "Linked",
    "Records",
    "Release",
    "Target",
    "anonymise",
    "downstream_auroc",
    "equivalence_classes",
    "fitting_schema",
    "identifying",
    "link",
    "measures",
    "read_hierarchies",
    "read_table",
    "spread",
    "uniqueness",
    "write_table",
]
