// Trial.
#define MOERT_FEW_LAUNCH LaunchFewBoth
#define MOERT_X_IN_SHARED
#define MOERT_FEW_REGISTERS 112
#include "kernels/cuda/few_products.cu"
