// Work on the rows of a batch, one by one, spread over threads.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_ROW_JOBS_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_ROW_JOBS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/sequence_state.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Calls row(group, index) for each row of each group, index counting within the group.
template <typename Row>
void ForEachRow(ThreadPool* pool, absl::Span<const RowGroup> groups, const Row& row) {
  constexpr int64_t kRowsPerJob = 32;
  struct Job {
    const RowGroup* group;
    int64_t first;
  };
  std::vector<Job> jobs;
  for (const RowGroup& group : groups) {
    for (int64_t i = 0; i < group.rows; i += kRowsPerJob) jobs.push_back({&group, i});
  }
  pool->Run(static_cast<int64_t>(jobs.size()), [&](int64_t index, int) {
    const Job& job = jobs[index];
    const int64_t end = std::min(job.group->rows, job.first + kRowsPerJob);
    for (int64_t i = job.first; i < end; ++i) row(*job.group, i);
  });
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_ROW_JOBS_H_
