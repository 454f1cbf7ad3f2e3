"""Prints kernels/quant_grids.c from gguf-py's grids (which are ggml's, packed): python make_quant_grids.py > kernels/quant_grids.c"""
import gguf.quants as q
import numpy as np

HEAD = """/* The grids of the IQ types: ggml's iq*_grid tables (ggml-common.h, MIT), one grid point in 16 bits (kernels/quant_grids.h).
 * Written by tests/vectors/scripts/make_quant_grids.py from gguf-py. */
#include "kernels/quant_grids.h"
"""


def table(name, cls):
    cls.init_grid()
    grid = cls.grid.reshape(cls.grid_shape).astype(int)
    index = {v: i for i, v in enumerate(cls.grid_map)}
    bits = 16 // grid.shape[1]
    words = [sum(index[v] << bits * i for i, v in enumerate(row)) for row in grid.tolist()]
    print(f"\nconst uint16_t {name}[{len(words)}] = {{")
    for i in range(0, len(words), 14):
        print("    " + ", ".join(f"0x{w:04x}" for w in words[i:i + 14]) + ",")
    print("};")


print(HEAD, end="")
for name, cls in (("grid_iq1", q.IQ1_S), ("grid_iq2_xxs", q.IQ2_XXS), ("grid_iq2_xs", q.IQ2_XS), ("grid_iq2_s", q.IQ2_S),
                  ("grid_iq3_xxs", q.IQ3_XXS), ("grid_iq3_s", q.IQ3_S)):
    table(name, cls)
