"""``python -m experiments.gdp [--out DIR] [--quick]``: writes its results beside this file, or into DIR."""

from pathlib import Path

from polyclinic.reproduce.gdp import run
from polyclinic.reproduce.writing import main

if __name__ == "__main__":
    main(run, Path(__file__).parent)
