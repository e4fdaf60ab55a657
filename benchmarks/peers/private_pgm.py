"""MST and AIM as their authors publish them, github.com/ryan112358/private-pgm, of cells that lie in a file.

It is run by a Python that has that repository's requirements, with its folders src and mechanisms on the path, and so imports
nothing of ours: ``python private_pgm.py CELLS.npz DRAWN.npz ALGORITHM EPSILON DELTA SEED MEGABYTES ROUNDS``. CELLS.npz has
``cells``, (n, A) whole numbers, and ``sizes``, (A,) how many there are in each column. ROUNDS is AIM's, 0 for its own, 16 A.
"""

import itertools
import sys
import time

import numpy as np
import pandas as pd


def main() -> int:
    source, target, algorithm, epsilon, delta, seed, megabytes, rounds = sys.argv[1:]
    from aim import AIM
    from mbi import Dataset, Domain
    from mst import MST

    given = np.load(source)
    names = [f"{column:03d}" for column in range(len(given["sizes"]))]
    data = Dataset(pd.DataFrame(given["cells"], columns=names), Domain(names, [int(size) for size in given["sizes"]]))
    np.random.seed(int(seed))  # noqa: NPY002 (what they draw from)
    begun = time.process_time()
    if algorithm == "mst":
        drawn = MST(data, float(epsilon), float(delta))
    else:
        mechanism = AIM(
            float(epsilon), float(delta), prng=np.random, rounds=int(rounds) or None, max_model_size=float(megabytes)
        )
        mechanism.prng = np.random  # the class takes it in the place of another argument
        _, drawn = mechanism.run(data, [(pair, 1.0) for pair in itertools.combinations(names, 2)])
    np.savez(target, cells=drawn.df[names].to_numpy().astype(np.int64), seconds=time.process_time() - begun)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
