// Measures whether a copy from another device's pool is faster than one from pinned host memory.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_PEER_RATE_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_PEER_RATE_H_

namespace moert::cuda {

/// Takes a few ms. False also if `to` cannot read the memory of `from`, or if the measurement
/// fails.
bool PeerCopiesPay(int from, int to);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_PEER_RATE_H_
