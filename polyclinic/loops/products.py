"""Products of small float32 matrices in the processor's vector registers.

Every number is a sum in the order of the inner dimension, of fused multiplications and additions. It is the same on
every processor, whatever stands beside it, and whichever libraries are there. A library's product of matrices that fit
the cache takes longer to copy them than to multiply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.loops import inline

Numbers = npt.NDArray[np.float32]
#: Rows are as long as a multiple of so many numbers.
PADDED = 16


def padded_size(size: int) -> int:
    """The size of a row that holds ``size`` numbers."""
    return (size + 15) // 16 * 16


def product(lanes: int = 0) -> Any:
    """``_product``, for functions of ``inline``, of so many ``lanes`` at once; 0: as many as the processor's registers have.

    The numbers do not depend on it.
    """
    from llvmlite import binding

    lanes = lanes or (16 if binding.get_host_cpu_features().get("avx512f") else 8)
    tiles: Mapping[str, Any] = {
        f"_{name}": _tile(rows, columns, lanes)
        for name, rows, columns in (("block", 4, 4), ("line", 1, 4), ("column", 4, 1), ("cell", 1, 1))
    }
    return inline(_product, {**tiles, "_LANES": lanes, "_WIDE": 4 * lanes})


def _product(
    a: Numbers, at_a: int, row_a: int, step_a: int, b: Numbers, at_b: int, row_b: int,
    c: Numbers, at_c: int, row_c: int, rows: int, depth: int, columns: int,
) -> None:  # fmt: skip
    """c = a b, (rows, columns) of (rows, depth) and (depth, columns), each in a flat array from its place on.

    Of ``a`` rows and columns are apart by any steps; of ``b`` and ``c`` rows are, and padded columns.
    """
    column = 0
    while column < columns:
        wide = column + _WIDE <= columns  # type: ignore[name-defined]  # noqa: F821
        right, made, row = at_b + column, at_c + column, 0
        while row < rows:
            four, left = row + 4 <= rows, at_a + row * row_a
            if wide and four:
                _block(a, left, row_a, step_a, b, right, row_b, c, made + row * row_c, row_c, depth)  # type: ignore[name-defined]  # noqa: F821
            elif wide:
                _line(a, left, row_a, step_a, b, right, row_b, c, made + row * row_c, row_c, depth)  # type: ignore[name-defined]  # noqa: F821
            elif four:
                _column(a, left, row_a, step_a, b, right, row_b, c, made + row * row_c, row_c, depth)  # type: ignore[name-defined]  # noqa: F821
            else:
                _cell(a, left, row_a, step_a, b, right, row_b, c, made + row * row_c, row_c, depth)  # type: ignore[name-defined]  # noqa: F821
            row += 4 if four else 1
        column += _WIDE if wide else _LANES  # type: ignore[name-defined]  # noqa: F821


def _tile(rows: int, vectors: int, lanes: int) -> Any:
    """Of ``_product`` so many rows, and columns in so many vectors, whose sums stay in registers."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    vector, number = ir.VectorType(ir.FloatType(), lanes), ir.IntType(32)

    def tile(_: Any, a: Any, at_a: Any, row_a: Any, step_a: Any, b: Any, at_b: Any, row_b: Any,
             c: Any, at_c: Any, row_c: Any, depth: Any) -> Any:  # fmt: skip
        def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            _, at_a, row_a, step_a, _, at_b, row_b, _, at_c, row_c, depth = given
            a, b, c = (context.make_array(signature.args[k])(context, builder, given[k]).data for k in (0, 4, 7))

            def place(data: Any, begin: Any, times: Any, step: Any, more: int = 0) -> Any:
                index = builder.add(builder.add(begin, builder.mul(times, step)), at_c.type(more))
                return builder.gep(data, [index])

            def vectors_from(data: Any, begin: Any, times: Any, step: Any) -> list[Any]:
                return [
                    builder.bitcast(place(data, begin, times, step, v * lanes), vector.as_pointer())
                    for v in range(vectors)
                ]

            form = ir.FunctionType(vector, [vector] * 3)
            fused = cgutils.get_or_insert_function(builder.module, form, f"llvm.fma.v{lanes}f32")  # type: ignore[no-untyped-call]
            nothing = ir.Constant(vector, [0.0] * lanes)
            sums = [[cgutils.alloca_once_value(builder, nothing) for _ in range(vectors)] for _ in range(rows)]  # type: ignore[no-untyped-call]
            with cgutils.for_range(builder, depth) as loop:
                right = [builder.load(pointer, align=4) for pointer in vectors_from(b, at_b, loop.index, row_b)]
                along = builder.add(at_a, builder.mul(loop.index, step_a))
                for row in range(rows):
                    scalar = builder.load(place(a, along, at_c.type(row), row_a))
                    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, number(0))
                    all_lanes = ir.Constant(ir.VectorType(number, lanes), [0] * lanes)
                    left = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), all_lanes)
                    for total, other in zip(sums[row], right, strict=True):
                        builder.store(builder.call(fused, [left, other, builder.load(total)]), total)
            for row in range(rows):
                for total, at in zip(sums[row], vectors_from(c, at_c, at_c.type(row), row_c), strict=True):
                    builder.store(builder.load(total), at, align=4)
            return context.get_dummy_value()

        whole = types.int64
        return types.void(a, whole, whole, whole, b, whole, whole, c, whole, whole, whole), code

    return intrinsic(tile)
