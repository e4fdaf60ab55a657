"""Flower strategies by name. A strategy here is Flower's own class; anything else is named ``package.module:Name``."""

_FLOWER = "flwr.serverapp.strategy"
#: Where each strategy that has a name is; loaded when it is asked for.
BUILT_IN: dict[str, str] = {
    "fedavg": f"{_FLOWER}:FedAvg",  # McMahan et al. 2017
    "fedsgd": f"{_FLOWER}:FedAvg",  # the same with one step over all patients, to which RunConfig holds it
    "fedprox": f"{_FLOWER}:FedProx",  # Li et al. 2020
    "fedavgm": f"{_FLOWER}:FedAvgM",  # Hsu et al. 2019
    "fedadam": f"{_FLOWER}:FedAdam",  # Reddi et al. 2021
    "fedadagrad": f"{_FLOWER}:FedAdagrad",
    "fedyogi": f"{_FLOWER}:FedYogi",
    "fedmedian": f"{_FLOWER}:FedMedian",  # Yin et al. 2018
    "fedtrimmedavg": f"{_FLOWER}:FedTrimmedAvg",
    "krum": f"{_FLOWER}:Krum",  # Blanchard et al. 2017
    "multikrum": f"{_FLOWER}:MultiKrum",
    "bulyan": f"{_FLOWER}:Bulyan",  # El Mhamdi et al. 2018
    "qfedavg": f"{_FLOWER}:QFedAvg",  # Li et al. 2020 (q-FFL)
    "scaffold": "polyclinic.strategies.scaffold:Scaffold",  # Karimireddy et al. 2020
    "fedbn": f"{_FLOWER}:FedAvg",  # Li et al. 2021: of what the server averages, normalisation layers are no part
    "ditto": f"{_FLOWER}:FedAvg",  # Li et al. 2021b: personal models never reach the server
}
