// Which of the earlier positions a query sees.
#ifndef MOERT_EXAMPLES_HOST_CUDA_FIRST_KEY_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_FIRST_KEY_CUH_

namespace moert::host {

/// The first key that a query at `position` sees: the last `window` positions, or those of its
/// chunk; 0: all.
__device__ __forceinline__ int FirstKey(int window, int chunk, int position) {
  if (chunk > 0) return position / chunk * chunk;
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_FIRST_KEY_CUH_
