// Trial.
#define MOERT_FEW_LAUNCH LaunchFewDeep
#define MOERT_RING_BYTES 11264
#include "kernels/cuda/few_products.cu"
