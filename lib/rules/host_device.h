// MOERT_HOST_DEVICE: a function that the host and CUDA kernels compile alike. No CUDA include.
#ifndef MOERT_LIB_RULES_HOST_DEVICE_H_
#define MOERT_LIB_RULES_HOST_DEVICE_H_

#ifdef __CUDACC__
#define MOERT_HOST_DEVICE __host__ __device__
#else
#define MOERT_HOST_DEVICE
#endif

#endif  // MOERT_LIB_RULES_HOST_DEVICE_H_
