// Trial.
#define MOERT_FEW_LAUNCH LaunchFewDeep
#define MOERT_X_IN_SHARED
#include "kernels/cuda/few_products.cu"
