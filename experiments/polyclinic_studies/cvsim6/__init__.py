"""CVSim-6: the heart and circulation as six compartments (Davis 1991; Heldt et al. 2010), batched and differentiable."""

from polyclinic_studies.cvsim6.circuit import COMPARTMENTS, Circuit, circuit
from polyclinic_studies.cvsim6.equilibrium import beginning
from polyclinic_studies.cvsim6.outputs import OUTPUTS, TARGETS, UNITS, measured, outputs
from polyclinic_studies.cvsim6.parameters import DYNES, NAMES, PARAMETERS, Parameter, parameter, parameters
from polyclinic_studies.cvsim6.simulation import BEATS, STEPS, Trace, simulate

__all__ = [
    "BEATS", "COMPARTMENTS", "DYNES", "NAMES", "OUTPUTS", "PARAMETERS", "STEPS", "TARGETS", "UNITS", "Circuit", "Parameter",
    "Trace", "beginning", "circuit", "measured", "outputs", "parameter", "parameters", "simulate",
]  # fmt: skip
