// How the products of a call are cut into jobs, which the pool's threads take.
#ifndef MOERT_LIB_GEMM_JOBS_H_
#define MOERT_LIB_GEMM_JOBS_H_

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "moert/mixed_group_gemm.h"

namespace moert::gemm {

// Weights of one job: enough to hide what a job costs to take, little enough to spread evenly: so
// many jobs a thread, where that leaves jobs of a legal size.
constexpr int64_t kMinJobWeightBytes = 24 << 10;
constexpr int64_t kMaxJobWeightBytes = 96 << 10;
constexpr int64_t kJobsPerThread = 8;
// Tokens of one job: weights are read once for so many, while an expert that got most of a prefill
// still splits over many threads.
constexpr int64_t kJobColumns = 128;

// One product stage (gate+up, or down) of a problem, cut into jobs.
struct Stage {
  int64_t first_job = 0;
  int64_t row_blocks = 0;
  int64_t blocks_per_job = 0;
  int64_t column_splits = 0;

  int64_t jobs() const { return CeilDiv(row_blocks, blocks_per_job) * column_splits; }
};

// An expert's part of a call.
struct Plan {
  const ExpertProblem* problem;
  int64_t first_slot;  // row of the h buffer
  Stage gate_up;
  Stage down;
  bool packs_at_once;  // h, after the last gate and up job
};

inline int64_t JobBytes(int64_t total, int threads) {
  return std::clamp(total / (threads * kJobsPerThread), kMinJobWeightBytes, kMaxJobWeightBytes);
}

// `job_bytes`: of weights; `least`: row blocks of a job.
inline Stage CutStage(int64_t row_blocks, int64_t bytes_per_block, int64_t job_bytes,
                      int64_t columns, int64_t least, int64_t multiple) {
  Stage stage;
  stage.row_blocks = row_blocks;
  stage.blocks_per_job = RoundUp(std::max(least, job_bytes / bytes_per_block), multiple);
  stage.column_splits = CeilDiv(columns, kJobColumns);
  return stage;
}

struct JobRange {
  int64_t block_begin, block_end;
  int64_t column_begin, column_end;
};

inline JobRange RangeOf(const Stage& stage, int64_t job, int64_t columns) {
  const int64_t local = job - stage.first_job;
  const int64_t block = local / stage.column_splits * stage.blocks_per_job;
  const int64_t column = local % stage.column_splits * kJobColumns;
  return {block, std::min(block + stage.blocks_per_job, stage.row_blocks), column,
          std::min(column + kJobColumns, columns)};
}

}  // namespace moert::gemm

#endif  // MOERT_LIB_GEMM_JOBS_H_
