// Trial.
#define MOERT_FEW_LAUNCH LaunchFewSlim
#define MOERT_RING_BYTES 8192
#define MOERT_FEW_REGISTERS 112
#include "kernels/cuda/few_products.cu"
