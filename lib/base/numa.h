// NUMA nodes of this machine, as Linux shows them; no library is needed for it.
#ifndef MOERT_LIB_BASE_NUMA_H_
#define MOERT_LIB_BASE_NUMA_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace moert {

/// Nodes that have memory, ascending; {0} where the system tells of none.
std::vector<int> NumaNodes();
/// CPUs of a node that this process may use. InvalidArgument names the nodes there are;
/// FailedPrecondition where it may use none of them.
absl::StatusOr<std::vector<int>> NumaCpus(int node);
/// Pages of this range that are touched from now on come from the node, or fail to come.
/// `memory` begins at a page. Unavailable where the system does not allow it.
absl::Status BindToNumaNode(void* memory, size_t bytes, int node);

}  // namespace moert

#endif  // MOERT_LIB_BASE_NUMA_H_
