/* kernels/quant_grids.h - grid points of the IQ weight types.
 *
 * Purpose    Data only. A point of grid_iq1 and grid_iq2_* is 8 elements of 2 bits, of grid_iq3_* 4 elements of 4 bits, the first
 *            lowest; what an element's number stands for is known to kernels/quant_plain.c.
 * Threading  Constant.
 */
#ifndef SLUICE_KERNELS_QUANT_GRIDS_H
#define SLUICE_KERNELS_QUANT_GRIDS_H

#include <stdint.h>

extern const uint16_t grid_iq1[2048], grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq3_xxs[256], grid_iq3_s[512];

#endif
