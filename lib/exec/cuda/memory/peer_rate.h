// Whether a copy from another device's pool is faster than one from pinned host memory: measured.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_PEER_RATE_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_PEER_RATE_H_

namespace moert::cuda {

/// Takes a few ms. False where `to` cannot read the memory of `from`, or nothing can be measured.
bool PeerCopiesPay(int from, int to);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_PEER_RATE_H_
