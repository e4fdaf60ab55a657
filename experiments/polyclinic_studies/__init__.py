"""Published experiments, run again with Polyclinic: ``polyclinic reproduce NAME``.

What was published and what is measured here stand side by side; what is missed is said to be.
"""

from polyclinic.experiments import Experiment

_BOTH = ("sound", "paper")

SPRINT = Experiment(
    "A two-arm trial by DP AC-GAN (Beaulieu-Jones et al. 2019) and by what beats it",
    "polyclinic_studies.generators.sprint:run", _BOTH,
)  # fmt: skip
MIMIC_HF = Experiment(
    "Vital signs and heart failure by DP AC-GAN (the same paper)", "polyclinic_studies.generators.mimic_hf:run", _BOTH
)
ICD = Experiment(
    "Sets of 1,071 ICD-9 codes by DPGAN (Xie et al. 2018) and PPGAN (Liu et al. 2019)",
    "polyclinic_studies.generators.icd:run", _BOTH,
)  # fmt: skip
DIGITS = Experiment("Pictures of digits, 8 x 8, by DPGAN and PPGAN", "polyclinic_studies.generators.digits:run", _BOTH)
MNIST = Experiment(
    "The same of MNIST, where its files are given", "polyclinic_studies.generators.digits:run_mnist", _BOTH
)
HOSPITALS = Experiment(
    "Hospitals that differ, against one with all their patients and against the best of them alone",
    "polyclinic_studies.generators.hospitals:run", takes=("seeds", "methods"),
)  # fmt: skip
VISITS = Experiment(
    "Visits over time: courses, intervals and the next visit, on made-up and real followed patients",
    "polyclinic_studies.generators.visits:run", takes=("seeds", "methods"),
)  # fmt: skip
STATED = Experiment(
    "What DPGAN, PPGAN and the AC-GAN state of epsilon, and what it comes to",
    "polyclinic_studies.generators.stated:run", takes=(),
)  # fmt: skip
CVSIM6 = Experiment(
    "A model of the circulation, its surrogate, and its parameters from patients",
    "polyclinic_studies.cvsim6.experiment:run", takes=(),
)  # fmt: skip
DISSIMILARITY = Experiment(
    "Parameters from synthetic records under four dissimilarities", "polyclinic_studies.ehr_vi.correlations:run",
    takes=(),
)  # fmt: skip
REGRESSION = Experiment(
    "Posteriors of a nonlinear regression: exact, by flows, and by private sums",
    "polyclinic_studies.flows.regression:run", takes=("hospitals", "seeds"),
)  # fmt: skip
EHR_VI = Experiment(
    "Two parameters of the circulation from private patients, and losses that keep correlations",
    "polyclinic_studies.ehr_vi.experiment:run", takes=("seeds",),
)  # fmt: skip
EHR_FLOW = Experiment(
    "Patients after a right heart catheter by private normalizing flows (Su et al. 2023)",
    "polyclinic_studies.ehr_flow.experiment:run", _BOTH, ("hospitals", "seeds"),
)  # fmt: skip
GDP = Experiment(
    "What normalizing flows' published epsilons come to (Su et al. 2023)", "polyclinic_studies.flows.gdp:run", takes=()
)
HEART_DISEASE = Experiment(
    "Heart disease at four hospitals: what a measured scale gains and what epsilon costs",
    "polyclinic_studies.federations.heart_disease:run", takes=("seeds",),
)  # fmt: skip
COMMUNICATION = Experiment(
    "Smaller updates: how the loss falls over the bytes that hospitals send",
    "polyclinic_studies.federations.communication:run", takes=(),
)  # fmt: skip
PRIVATE_METRICS = Experiment(
    "How far private metrics at epsilon = 1 are from the exact ones", "polyclinic_studies.federations.private_metrics:run",
    takes=("seeds",),
)  # fmt: skip
PERSONALISED = Experiment(
    "Personalised and corrected strategies on skewed hospitals, with and without privacy",
    "polyclinic_studies.federations.personalised:run", takes=("seeds", "methods"),
)  # fmt: skip
ACCURACY = Experiment(
    "How near private federations come to pooled logistic regression, and how true their risks are",
    "polyclinic_studies.accuracy.study:run", takes=("seeds", "methods"),
)  # fmt: skip
AUDIT = Experiment(
    "Canary audits of every trainer over twenty seeds, and of faults that must be flagged",
    "polyclinic_studies.audits:run", takes=("seeds", "methods"),
)  # fmt: skip
