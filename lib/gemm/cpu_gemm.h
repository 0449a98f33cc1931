// The MixedGroupGemm of the CPU: validates the problems, lays out the workspace, cuts the work into
// jobs and lets the pool's threads take them. The arithmetic is in kernels/.
//
// A call is three or four parallel steps: pack the rows of x into the operand forms of the
// problems' schemes; all gate and up products with the activation; all down products. For bf16
// weights the 16 results of a row block are packed immediately, as one operand piece of the down
// product. Other forms have data that spans pieces (scales, sums, Hadamard blocks), so h is kept in
// fp32. It is packed by the thread that ends an expert's last gate and up job or, with many tokens,
// in a step of its own. A job is some row blocks of one problem for some of its tokens. The way
// jobs are cut changes no result: see kernels/cpu/block_gemm.h.
//
// Wide kernels need evenly spaced rows. Rows of h are; rows of x are gathered if an expert's tokens
// are not evenly spaced, once for all row blocks of a job.
// cpu_gemm.cc lays out a call and packs operands, cpu_gemm_jobs.cc multiplies.
#ifndef MOERT_LIB_GEMM_CPU_GEMM_H_
#define MOERT_LIB_GEMM_CPU_GEMM_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "gemm/block_product.h"
#include "kernels/cpu/kernel_set.h"
#include "moert/mixed_group_gemm.h"
#include "moert/thread_pool.h"

namespace moert::gemm {

// The products of a call are cut into jobs, which the pool's threads take. A job has enough weights
// to hide the cost of taking it, and few enough to balance the load: kJobsPerThread jobs per
// thread, within the limits of a job's size.
constexpr int64_t kMinJobWeightBytes = 24 << 10;
constexpr int64_t kMaxJobWeightBytes = 96 << 10;
constexpr int64_t kJobsPerThread = 8;
// The most tokens of one job: weights are read once for so many, and an expert with most tokens of
// a prefill still splits over many threads.
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
  bool packs_at_once;  // h is packed directly after the last gate and up job
};

inline int64_t JobBytes(int64_t total, int threads) {
  return std::clamp(total / (threads * kJobsPerThread), kMinJobWeightBytes, kMaxJobWeightBytes);
}

// `job_bytes`: weights of a job; `least`: the fewest row blocks of a job.
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

using kernels::KernelSet;
using kernels::kOperandKinds;

// An input is packed as it is (form `kind`) and, for experts stored in the Hadamard domain, after
// the transform (form kOperandKinds + kind).
constexpr int kInputForms = 2 * kOperandKinds;
inline int InputForm(const Scheme& scheme, bool hadamard, ActivationNumerics numerics) {
  return static_cast<int>(kernels::OperandFor(scheme, numerics)) + (hadamard ? kOperandKinds : 0);
}

// The forms in which the operands of a call's products are packed.
struct Forms {
  bool x[kInputForms] = {};
  bool h[kOperandKinds] = {};
  bool keeps_h = false;   // whether some h is kept in fp32 before it is packed
  bool copies_x = false;  // whether some x is transformed or rounded before it is packed
  bool apart = false;     // whether gate and up of some expert are two separate products

  void Add(const ExpertFormat& format, ActivationNumerics numerics) {
    x[InputForm(format.gate, format.hadamard, numerics)] = true;
    x[InputForm(format.up, format.hadamard, numerics)] = true;
    const OperandKind down = kernels::OperandFor(format.down, numerics);
    h[static_cast<int>(down)] = true;
    keeps_h |= format.hadamard || down != OperandKind::kPlain;
    const auto rounds = [numerics](const Scheme& scheme) {
      return kernels::OperandFor(scheme, numerics) == OperandKind::kF8Group;
    };
    copies_x |= format.hadamard || rounds(format.gate) || rounds(format.up);
    apart |= format.gate != format.up;
  }
};
static_assert(static_cast<int>(OperandKind::kPlain) == 0);

// Bytes of the parts of the workspace; all are multiples of 64 or of a float.
class OperandSizes {
 public:
  OperandSizes(const KernelSet& set, ActivationNumerics numerics, int threads)
      : set_(set), numerics_(numerics), threads_(threads) {}

  OperandKernels Kernels(int kind) const {
    return set_.For(static_cast<OperandKind>(kind), numerics_);
  }

  // Bytes of one packed row: an odd number of cache lines, because rows a power of two apart would
  // compete for the same few cache sets.
  int64_t OperandBytes(int kind, int64_t channels) const;
  // Bytes of one packed row of h, in the widest form.
  int64_t WidestH(const Forms& forms, int64_t channels) const;

  // Floats per thread for one row of x that is transformed or rounded before it is packed.
  static int64_t TransformStride(int64_t hidden) { return RoundUp(hidden, 16); }
  int64_t TransformBytes(int64_t hidden, const Forms& forms) const;

  // Room per thread for the gathered rows of x of a job: for gate and up, and again for up if that
  // is a separate product.
  static int64_t GatherRows(int64_t slots) { return std::min(slots, kJobColumns); }
  int64_t WidestGathered(const Forms& forms, int64_t hidden) const;
  int64_t GatherBytes(int64_t slots, int64_t hidden, const Forms& forms) const;

  // Bytes of weights that a thread keeps as tiles if a job has more columns than a kernel takes at
  // once: of one row block, and of all blocks of all threads. 0 if no expert can have so many
  // tokens.
  int64_t KeptBytes(int64_t slots, int64_t hidden, int64_t widest, const Forms& forms) const;
  int64_t RoomForKept(int64_t slots, int64_t hidden, int64_t widest, const Forms& forms) const {
    return threads_ * kernels::kMaxBlocks * KeptBytes(slots, hidden, widest, forms);
  }

  // There are at most as many problems as slots, because empty ones are skipped.
  static int64_t PlanBytes(int64_t slots) {
    return RoundUp(slots * static_cast<int64_t>(sizeof(Plan)), 64);
  }

  // The whole workspace. `slots`: pairs of token and expert; `widest`: largest intermediate size.
  int64_t Workspace(int64_t rows, int64_t slots, int64_t hidden, int64_t widest,
                    const Forms& forms) const;

 private:
  const KernelSet& set_;
  const ActivationNumerics numerics_;
  const int threads_;
};

class CpuGemm final : public MixedGroupGemm {
 public:
  CpuGemm(ThreadPool* pool, const KernelSet& set, ActivationNumerics numerics)
      : pool_(pool), set_(set), numerics_(numerics), sizes_(set, numerics, pool->num_threads()) {}

  absl::Status Run(const float* x, int64_t rows, int64_t hidden,
                   absl::Span<const ExpertProblem> problems, float* out) override;
  int64_t WorkspaceBytes(int64_t rows, int64_t slots, int64_t hidden, int64_t max_intermediate,
                         absl::Span<const ExpertFormat> formats) const override;
  absl::string_view kernels() const override { return set_.name; }

 private:
  // The fewest row blocks of a gate and up job for which gathering its rows of x is cheap in
  // comparison.
  int64_t GatheringBlocks(const RecordLayout& layout, int64_t columns) const;

  void MakePlans(absl::Span<const ExpertProblem> problems);

  // The first job of a worker if the pool gives each worker an equal range, in order. With another
  // pool the prefetches that use this are useless, but do no harm.
  int64_t FirstJob(int64_t jobs, int worker) const { return jobs * worker / pool_->num_threads(); }

  // Prefetches the first weights of a worker's jobs in a step into the L2 cache.
  void FetchFirst(Stage Plan::*stage, int64_t jobs, int worker) const;

  const Plan& PlanOf(int64_t job, Stage Plan::*stage) const {
    const Plan* after = std::upper_bound(
        plans_, plans_ + num_plans_, job,
        [stage](int64_t j, const Plan& plan) { return j < (plan.*stage).first_job; });
    return *(after - 1);
  }

  // Whether gate and up jobs pack h piece by piece; else h is kept in fp32 for PackH.
  bool PacksPieces(const RecordLayout& layout) const {
    return !layout.format.hadamard &&
           kernels::OperandFor(layout.down.scheme, numerics_) == OperandKind::kPlain;
  }

  void PackInput(int64_t rows, const Forms& forms);
  void PackH(int64_t slots);
  // Includes the Hadamard transform, while the row is in the L1 cache.
  void PackHRow(const Plan& plan, int64_t slot) const;
  /// Packs the rows of h of a problem when its last job of gate and up is done.
  void PackBehindLast(const Plan& plan) const;

  // The product of gate or up with the tokens of a job. `room`: memory for gathered rows.
  Product ProductOfX(const ExpertProblem& problem, const MatrixLayout& matrix,
                     const JobRange& range, uint8_t* room) const;

  // One product of `args.blocks` row blocks with the columns [column, column + args.columns) of x.
  void MultiplyX(const ExpertProblem& problem, const MatrixLayout& matrix, const JobRange& range,
                 const Product& product, int64_t column, BlockGemmArgs* args) const;

  void GateUpJob(int64_t job, int thread) const;

  // Computes h from `count` products of gate and up, which it may overwrite.
  void Activate(const ExpertActivation& activation, int64_t count, float* gate, float* up,
                float* h) const;

  // Stores the h of row block `block` for consecutive slots; packed if down reads it packed.
  void StoreH(const RecordLayout& layout, int64_t block, int64_t first_slot, int columns,
              const float* h) const;
  // Packs the 16 channels of h from row block `block` as one piece of a plain operand.
  static void PackPiece(const RecordLayout& layout, int64_t block, const float* h,
                        const OperandKernels& kernels, uint8_t* row);

  void DownJob(int64_t job, int thread) const;

  void Scatter(const ExpertProblem& problem, int64_t block, int blocks, int64_t column, int columns,
               const float* product) const;

  ThreadPool* const pool_;
  const KernelSet& set_;
  const ActivationNumerics numerics_;
  const OperandSizes sizes_;
  AlignedBuffer workspace_;

  // State of the current Run; the arrays are in workspace_.
  const float* x_ = nullptr;
  float* out_ = nullptr;
  int64_t hidden_ = 0;
  uint8_t* packed_x_[kInputForms] = {};
  float* transformed_ = nullptr;  // per thread: a row of x before it is packed
  uint8_t* gathered_ = nullptr;   // per thread: the rows of x that a job gathers
  int64_t gathered_matrix_bytes_ = 0;
  int64_t gathered_matrices_ = 1;  // 2 if gate and up may be two products
  uint8_t* kept_ = nullptr;        // per thread: kMaxBlocks row blocks of weights kept as tiles
  int64_t kept_block_bytes_ = 0;
  uint8_t* packed_h_ = nullptr;  // each slot in the form of its down matrix
  int64_t h_row_bytes_ = 0;
  float* h_ = nullptr;  // h in fp32, if it is not packed immediately
  int64_t h_stride_ = 0;
  Plan* plans_ = nullptr;
  std::atomic<int64_t>* pending_ = nullptr;  // [plans]: gate and up jobs that are not done
  int64_t num_plans_ = 0;
  int64_t gate_up_jobs_ = 0;
  int64_t down_jobs_ = 0;
};

}  // namespace moert::gemm

#endif  // MOERT_LIB_GEMM_CPU_GEMM_H_
