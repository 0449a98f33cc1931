// NUMA nodes of this machine, as Linux shows them; no library is needed for it.
#ifndef MOERT_LIB_BASE_NUMA_H_
#define MOERT_LIB_BASE_NUMA_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert {

/// Nodes that have memory, ascending; {0} if the system lists none.
std::vector<int> NumaNodes();
/// CPUs of a node that this process may use. InvalidArgument names the existing nodes;
/// FailedPrecondition if the process may use none of the node's CPUs.
absl::StatusOr<std::vector<int>> NumaCpus(int node);
/// Binds a range to a node: pages touched from now on come from that node only. `memory` must begin
/// at a page. Unavailable if the system does not allow it.
absl::Status BindToNumaNode(void* memory, size_t bytes, int node);

}  // namespace moert

#endif  // MOERT_LIB_BASE_NUMA_H_
