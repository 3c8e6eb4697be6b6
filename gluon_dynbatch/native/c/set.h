/* The kernels of one instruction set. The includer defines:
 *
 * GDB_SET                           name of the instruction set
 * GDB_BYTES                         bytes of a vector
 * GDB_TILE_ROWS, GDB_TILE_VECTORS   rows, and vectors per row, of a tile of C in registers
 */
#define GDB_DOUBLE 1
#include "functions.h"
#include "loops.h"
#include "products.h"
#include "gradients.h"
#include "random.h"
#include "endings.h"
#include "winograd.h"
#include "choices.h"
#include "chains.h"
#include "tiled_gradients.h"
#include "convolutions.h"
#undef GDB_DOUBLE
#define GDB_DOUBLE 0
#include "functions.h"
#include "loops.h"
#include "products.h"
#include "gradients.h"
#include "random.h"
#include "endings.h"
#include "winograd.h"
#include "choices.h"
#include "chains.h"
#include "tiled_gradients.h"
#include "convolutions.h"
#undef GDB_DOUBLE
#undef GDB_SET
#undef GDB_BYTES
#undef GDB_TILE_ROWS
#undef GDB_TILE_VECTORS
