// Trial.
#define MOERT_FEW_LAUNCH LaunchFewSlim
#define MOERT_X_IN_SHARED
#define MOERT_RING_BYTES 11264
#include "kernels/cuda/few_products.cu"
