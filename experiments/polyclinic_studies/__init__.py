"""Published experiments, run again with Polyclinic: ``polyclinic reproduce NAME``.

What was published and what is measured here stand side by side; what is missed is said to be.
"""

from polyclinic.experiments import Experiment

_BOTH = ("sound", "paper")

SPRINT = Experiment(
    "A two-arm trial by DP AC-GAN (Beaulieu-Jones et al. 2019) and by what beats it",
    "polyclinic_studies.generators.sprint:run", _BOTH,
    goals={"R12": "A trial: participants at ε = 2.5 teach more than the published GAN's, and correlate as real ones"}, hours=3,
)  # fmt: skip
MIMIC_HF = Experiment(
    "Vital signs and heart failure by DP AC-GAN (the same paper)",
    "polyclinic_studies.generators.mimic_hf:run",
    _BOTH,
    goals={
        "R13": "Heart failure: synthetic stays at ε = 2.5 teach as much as real ones within .05, and correlate as they do"
    },
    hours=2,
)
ICD = Experiment(
    "Sets of 1,071 ICD-9 codes by DPGAN (Xie et al. 2018) and PPGAN (Liu et al. 2019)",
    "polyclinic_studies.generators.icd:run", _BOTH,
    goals={"R15": "Sets of codes: frequencies within .01, and more of the joint law than independent codes keep"}, hours=3,
)  # fmt: skip
DIGITS = Experiment(
    "Pictures of digits, 8 x 8, by DPGAN and PPGAN",
    "polyclinic_studies.generators.digits:run",
    _BOTH,
    goals={"R14": "Digits by DPGAN at ε = 10 teach an accuracy of .80, and PPGAN is above it"},
    hours=4,
)
MNIST = Experiment(
    "The same of MNIST, where its files are given",
    "polyclinic_studies.generators.digits:run_mnist",
    _BOTH,
    hours=6,
)
HOSPITALS = Experiment(
    "Hospitals that differ, against one with all their patients and against the best of them alone",
    "polyclinic_studies.generators.hospitals:run", takes=("seeds", "methods"),
    goals={"R16": "Hospitals that differ: with shared noise as good as one pooled, and better than the best alone"}, hours=2,
)  # fmt: skip
SYNTHESIZERS = Experiment(
    "Which synthesizer for which records: every method on every data set, by epsilon",
    "polyclinic_studies.generators.synthesizers:run", takes=("seeds", "methods"), hours=1,
)  # fmt: skip
VISITS = Experiment(
    "Visits over time: courses, intervals and the next visit, on made-up and real followed patients",
    "polyclinic_studies.visits.study:run", takes=("seeds", "methods"), hours=0.5,
)  # fmt: skip
STATED = Experiment(
    "What DPGAN, PPGAN and the AC-GAN state of epsilon, and what it comes to",
    "polyclinic_studies.generators.stated:run", takes=(),
    goals={"R11": "AC-GAN: the published networks, clip and noise"},
)  # fmt: skip
CVSIM6 = Experiment(
    "A model of the circulation, its surrogate, and its parameters from patients",
    "polyclinic_studies.cvsim6.experiment:run", takes=(),
    goals={"R6": "CVSim-6: the published outputs, and a hundred times as fast", "R7": "CVSim-6: volumes, and no blood lost",
           "R8": "Surrogate: within 1 % of the simulator at new points"}, hours=0.3,
)  # fmt: skip
DISSIMILARITY = Experiment(
    "Parameters from synthetic records under four dissimilarities", "polyclinic_studies.ehr_vi.correlations:run",
    takes=(),
    goals={"R9": "Which correlation each loss prefers: closed form and descent"},
)  # fmt: skip
REGRESSION = Experiment(
    "Posteriors of a nonlinear regression: exact, by flows, and by private sums",
    "polyclinic_studies.flows.regression:run", takes=("hospitals", "seeds"),
    goals={"R1": "Regression: the exact posterior, and its coverage", "R2": "Regression: a flow without privacy",
           "R3": "Regression: records of a private flow are nearer than published",
           "R4": "Regression: private posteriors, by sums and by the published algorithm"}, hours=0.7,
)  # fmt: skip
EHR_VI = Experiment(
    "Two parameters of the circulation from private patients, and losses that keep correlations",
    "polyclinic_studies.ehr_vi.experiment:run", takes=("seeds",), hours=0.5,
)  # fmt: skip
EHR_FLOW = Experiment(
    "Patients after a right heart catheter by private normalizing flows (Su et al. 2023)",
    "polyclinic_studies.ehr_flow.experiment:run", _BOTH, ("hospitals", "seeds"),
    goals={"R10": "Health records: what a private flow teaches at ε = 4, δ = .001"}, hours=0.3,
)  # fmt: skip
GDP = Experiment(
    "What normalizing flows' published epsilons come to (Su et al. 2023)",
    "polyclinic_studies.flows.gdp:run",
    takes=(),
    goals={"R5": "Accountants agree with each other and with the published noise"},
)
HEART_DISEASE = Experiment(
    "Heart disease at four hospitals: what a measured scale gains and what epsilon costs",
    "polyclinic_studies.federations.heart_disease:run", takes=("seeds",), hours=0.3,
)  # fmt: skip
COMMUNICATION = Experiment(
    "Smaller updates: how the loss falls over the bytes that hospitals send",
    "polyclinic_studies.federations.communication:run", takes=(), hours=0.3,
)  # fmt: skip
PRIVATE_METRICS = Experiment(
    "How far private metrics at epsilon = 1 are from the exact ones", "polyclinic_studies.federations.private_metrics:run",
    takes=("seeds",), hours=0.3,
)  # fmt: skip
PERSONALISED = Experiment(
    "Personalised and corrected strategies on skewed hospitals, with and without privacy",
    "polyclinic_studies.federations.personalised:run", takes=("seeds", "methods"), hours=6,
)  # fmt: skip
ACCURACY = Experiment(
    "How near private federations come to pooled logistic regression, and how true their risks are",
    "polyclinic_studies.accuracy.study:run", takes=("seeds", "methods"), hours=1,
)  # fmt: skip
AUDIT = Experiment(
    "Canary audits of every trainer over twenty seeds, and of faults that must be flagged",
    "polyclinic_studies.audits:run", takes=("seeds", "methods"),
    goals={"R17": "Audits: no alarm for any trainer, and every fault flagged"}, hours=3,
)  # fmt: skip
