"""What compiles loops: where nothing can be kept on the disk too."""

from __future__ import annotations

import numpy as np

from polyclinic.loops import compile_loop


def test_loops_are_compiled_where_no_folder_can_keep_them() -> None:
    """As in a container that is read-only: here the loop is of no file at all."""
    names: dict[str, object] = {}
    exec("def double(values):\n    for i in range(len(values)):\n        values[i] *= factor", names)
    values = np.arange(3.0)
    compile_loop(names["double"], "void(float64[::1])", {"factor": 2.0})(values)  # type: ignore[arg-type]
    assert values.tolist() == [0, 2, 4]
