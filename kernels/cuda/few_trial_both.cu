// Trial.
#define MOERT_FEW_LAUNCH LaunchFewBoth
#define MOERT_RING_BYTES 11264
#define MOERT_FEW_REGISTERS 112
#include "kernels/cuda/few_products.cu"
