// The CPU MixedGroupGemm: validates the problems, lays out the workspace, cuts the work into jobs
// and lets the pool's threads take them. The arithmetic is in kernels/.
//
// A call is three parallel steps: pack the rows of x into the kernels' operand form; all gate and
// up products with the activation, whose 16 results a row block are at once packed as one operand
// piece of the next step; all down products. A job is some row blocks of one problem for some of
// its tokens. How jobs are cut changes no result: see kernels/cpu/block_gemm.h.
#include "moert/mixed_group_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/aligned_buffer.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/cpu/kernel_set.h"

namespace moert {
namespace {

using kernels::ActivationKernels;
using kernels::BlockGemmArgs;
using kernels::kBlockRows;
using kernels::KernelSet;
using kernels::kMaxBlocks;
using kernels::kMaxColumns;
using kernels::kPieceK;

// Weights of one job: enough to hide what a job costs to take, little enough to spread evenly.
constexpr int64_t kJobWeightBytes = 96 << 10;
// Tokens of one job: weights are read once for so many, while an expert that got most of a prefill
// still splits over many threads.
constexpr int64_t kJobColumns = 128;
// Below this, packing x is cheaper than waking threads for it.
constexpr int64_t kPackInline = 16 << 10;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// One product stage (gate+up, or down) of a problem, cut into jobs.
struct Stage {
  int64_t first_job = 0;
  int64_t row_blocks = 0;
  int64_t blocks_per_job = 0;
  int64_t column_splits = 0;

  int64_t jobs() const { return CeilDiv(row_blocks, blocks_per_job) * column_splits; }
};

struct Plan {
  const ExpertProblem* problem;
  int64_t first_slot;  // row of the h buffer
  Stage gate_up;
  Stage down;
};

Stage CutStage(int64_t row_blocks, int64_t bytes_per_block, int64_t columns, int64_t multiple) {
  Stage stage;
  stage.row_blocks = row_blocks;
  stage.blocks_per_job = RoundUp(std::max<int64_t>(1, kJobWeightBytes / bytes_per_block), multiple);
  stage.column_splits = CeilDiv(columns, kJobColumns);
  return stage;
}

struct JobRange {
  int64_t block_begin, block_end;
  int64_t column_begin, column_end;
};

JobRange RangeOf(const Stage& stage, int64_t job, int64_t columns) {
  const int64_t local = job - stage.first_job;
  const int64_t block = local / stage.column_splits * stage.blocks_per_job;
  const int64_t column = local % stage.column_splits * kJobColumns;
  return {block, std::min(block + stage.blocks_per_job, stage.row_blocks), column,
          std::min(column + kJobColumns, columns)};
}

const uint8_t* Weights(const ExpertProblem& problem, const MatrixLayout& matrix) {
  return reinterpret_cast<const uint8_t*>(problem.record) + matrix.weight_offset;
}

class CpuMixedGroupGemm final : public MixedGroupGemm {
 public:
  CpuMixedGroupGemm(ThreadPool* pool, const KernelSet& set, ActivationNumerics numerics)
      : pool_(pool), set_(set), kernels_(set.For(numerics)) {}

  absl::Status Run(const float* x, int64_t rows, int64_t hidden,
                   absl::Span<const ExpertProblem> problems, float* out) override {
    int64_t slots = 0;
    int64_t widest = 0;
    for (size_t i = 0; i < problems.size(); ++i) {
      MOERT_RETURN_IF_ERROR(CheckProblem(problems[i], i, rows, hidden));
      slots += static_cast<int64_t>(problems[i].tokens.size());
      widest = std::max(widest, problems[i].layout->gate.rows);
    }
    if (slots == 0) return absl::OkStatus();
    const int64_t needed = WorkspaceBytes(rows, slots, hidden, widest);
    if (workspace_.size() < needed) MOERT_RETURN_IF_ERROR(workspace_.Reset(needed));
    x_ = x;
    out_ = out;
    hidden_ = hidden;
    x_row_bytes_ = OperandBytes(hidden);
    h_row_bytes_ = OperandBytes(widest);
    packed_x_ = reinterpret_cast<uint8_t*>(workspace_.data());
    packed_h_ = packed_x_ + rows * x_row_bytes_;
    plans_ = reinterpret_cast<Plan*>(packed_h_ + slots * h_row_bytes_);
    MakePlans(problems);

    PackInput(rows);
    pool_->Run(gate_up_jobs_, [this](int64_t job, int) { GateUpJob(job); });
    pool_->Run(down_jobs_, [this](int64_t job, int) { DownJob(job); });
    return absl::OkStatus();
  }

  int64_t WorkspaceBytes(int64_t rows, int64_t slots, int64_t hidden,
                         int64_t max_intermediate) const override {
    // No more problems than slots: empty ones are skipped.
    return rows * OperandBytes(hidden) + slots * OperandBytes(max_intermediate) +
           RoundUp(slots * static_cast<int64_t>(sizeof(Plan)), 64);
  }

  absl::string_view kernels() const override { return set_.name; }

 private:
  int64_t OperandBytes(int64_t channels) const {
    return RoundUp(channels, kKTile) / kPieceK * kernels_.bytes_per_k16;
  }

  absl::Status CheckProblem(const ExpertProblem& p, size_t index, int64_t rows,
                            int64_t hidden) const {
    if (p.record == nullptr || p.layout == nullptr) {
      return absl::InvalidArgumentError(fmt::format("problem {} has no record or layout", index));
    }
    const RecordLayout& l = *p.layout;
    for (const MatrixLayout* matrix : {&l.gate, &l.up, &l.down}) {
      if (!matrix->scheme.is_bf16() || kernels_.gemm_bf16 == nullptr) {
        return absl::UnimplementedError(
            fmt::format("kernel set '{}' has no kernel for weights in {}, legal: bf16", set_.name,
                        matrix->scheme.Name()));
      }
    }
    if (l.gate.k != hidden || l.up.k != hidden || l.down.rows != hidden ||
        l.up.rows != l.gate.rows || l.down.k != l.gate.rows) {
      return absl::InvalidArgumentError(fmt::format(
          "problem {}: gate [{}, {}], up [{}, {}], down [{}, {}] are no expert of hidden "
          "size {}",
          index, l.gate.rows, l.gate.k, l.up.rows, l.up.k, l.down.rows, l.down.k, hidden));
    }
    if (p.activation < Activation::kSilu || p.activation > Activation::kGeluTanh) {
      return absl::InvalidArgumentError(
          fmt::format("problem {}: unknown activation {}", index, static_cast<int>(p.activation)));
    }
    if (p.tokens.size() != p.out_rows.size()) {
      return absl::InvalidArgumentError(fmt::format("problem {}: {} tokens but {} output rows",
                                                    index, p.tokens.size(), p.out_rows.size()));
    }
    for (const int32_t token : p.tokens) {
      if (token < 0 || token >= rows) {
        return absl::InvalidArgumentError(
            fmt::format("problem {}: token {} of {} rows", index, token, rows));
      }
    }
    for (const int32_t row : p.out_rows) {
      if (row < 0) {
        return absl::InvalidArgumentError(fmt::format("problem {}: output row {}", index, row));
      }
    }
    return absl::OkStatus();
  }

  void MakePlans(absl::Span<const ExpertProblem> problems) {
    num_plans_ = gate_up_jobs_ = down_jobs_ = 0;
    int64_t slot = 0;
    for (const ExpertProblem& problem : problems) {
      const auto columns = static_cast<int64_t>(problem.tokens.size());
      if (columns == 0) continue;
      const MatrixLayout& gate = problem.layout->gate;
      const MatrixLayout& down = problem.layout->down;
      Plan plan;
      plan.problem = &problem;
      plan.first_slot = slot;
      plan.gate_up = CutStage(gate.padded_rows / kBlockRows, 2 * gate.padded_k * kBlockRows * 2,
                              columns, /*multiple=*/1);
      plan.gate_up.first_job = gate_up_jobs_;
      plan.down = CutStage(down.padded_rows / kBlockRows, down.padded_k * kBlockRows * 2, columns,
                           /*multiple=*/kMaxBlocks);
      plan.down.first_job = down_jobs_;
      slot += columns;
      gate_up_jobs_ += plan.gate_up.jobs();
      down_jobs_ += plan.down.jobs();
      plans_[num_plans_++] = plan;
    }
  }

  const Plan& PlanOf(int64_t job, Stage Plan::*stage) const {
    const Plan* after = std::upper_bound(
        plans_, plans_ + num_plans_, job,
        [stage](int64_t j, const Plan& plan) { return j < (plan.*stage).first_job; });
    return *(after - 1);
  }

  void PackInput(int64_t rows) {
    const int64_t k16s = RoundUp(hidden_, kKTile) / kPieceK;
    const auto pack = [this, k16s](int64_t row, int) {
      kernels_.pack(x_ + row * hidden_, hidden_, k16s, packed_x_ + row * x_row_bytes_);
    };
    if (rows * hidden_ <= kPackInline) {
      for (int64_t row = 0; row < rows; ++row) pack(row, 0);
    } else {
      pool_->Run(rows, pack);
    }
  }

  void GateUpJob(int64_t job) const {
    const Plan& plan = PlanOf(job, &Plan::gate_up);
    const ExpertProblem& problem = *plan.problem;
    const RecordLayout& layout = *problem.layout;
    const JobRange range = RangeOf(plan.gate_up, job, static_cast<int64_t>(problem.tokens.size()));
    const int64_t block_bytes = layout.gate.padded_k * kBlockRows * 2;
    const uint8_t* gate = Weights(problem, layout.gate);
    const uint8_t* up = Weights(problem, layout.up);
    const kernels::GluFn glu = set_.glu[static_cast<int>(problem.activation)];
    const int64_t piece = kernels_.bytes_per_k16;
    alignas(64) float product[kMaxBlocks * kMaxColumns * kBlockRows];
    alignas(64) float h[kMaxColumns * kBlockRows];

    BlockGemmArgs args;
    args.blocks = 2;
    args.k16s = layout.gate.padded_k / kPieceK;
    args.out = product;
    for (int64_t block = range.block_begin; block < range.block_end; ++block) {
      args.weights[0] = gate + block * block_bytes;
      args.weights[1] = up + block * block_bytes;
      args.next = args.weights[0] + block_bytes;
      for (int64_t column = range.column_begin; column < range.column_end; column += kMaxColumns) {
        args.columns = static_cast<int>(std::min<int64_t>(kMaxColumns, range.column_end - column));
        for (int c = 0; c < args.columns; ++c) {
          args.x[c] = packed_x_ + problem.tokens[static_cast<size_t>(column + c)] * x_row_bytes_;
        }
        kernels_.gemm_bf16(args);
        glu(product, product + kMaxColumns * kBlockRows, args.columns * kBlockRows, h);
        for (int c = 0; c < args.columns; ++c) {
          uint8_t* row = packed_h_ + (plan.first_slot + column + c) * h_row_bytes_;
          kernels_.pack(h + c * kBlockRows, kBlockRows, 1, row + block * piece);
          if (block + 1 == plan.gate_up.row_blocks) {
            // The padding that rounds intermediate up to a K tile: zero, for 0 x NaN is NaN.
            const int64_t pieces = layout.down.padded_k / kPieceK;
            std::memset(row + (block + 1) * piece, 0,
                        static_cast<size_t>((pieces - block - 1) * piece));
          }
        }
      }
    }
  }

  void DownJob(int64_t job) const {
    const Plan& plan = PlanOf(job, &Plan::down);
    const ExpertProblem& problem = *plan.problem;
    const MatrixLayout& down = problem.layout->down;
    const JobRange range = RangeOf(plan.down, job, static_cast<int64_t>(problem.tokens.size()));
    const int64_t block_bytes = down.padded_k * kBlockRows * 2;
    const uint8_t* weights = Weights(problem, down);
    alignas(64) float product[kMaxBlocks * kMaxColumns * kBlockRows];

    BlockGemmArgs args;
    args.k16s = down.padded_k / kPieceK;
    args.out = product;
    for (int64_t block = range.block_begin; block < range.block_end; block += kMaxBlocks) {
      args.blocks = static_cast<int>(std::min<int64_t>(kMaxBlocks, range.block_end - block));
      args.weights[0] = weights + block * block_bytes;
      args.weights[1] = args.weights[0] + block_bytes;
      args.next = args.weights[0] + args.blocks * block_bytes;
      for (int64_t column = range.column_begin; column < range.column_end; column += kMaxColumns) {
        args.columns = static_cast<int>(std::min<int64_t>(kMaxColumns, range.column_end - column));
        for (int c = 0; c < args.columns; ++c) {
          args.x[c] = packed_h_ + (plan.first_slot + column + c) * h_row_bytes_;
        }
        kernels_.gemm_bf16(args);
        for (int b = 0; b < args.blocks; ++b) {
          const int64_t first = (block + b) * kBlockRows;
          const int64_t count = std::min<int64_t>(kBlockRows, hidden_ - first);
          for (int c = 0; c < args.columns; ++c) {
            const int64_t row = problem.out_rows[static_cast<size_t>(column + c)];
            float* to = out_ + row * hidden_ + first;
            const float* from = product + (b * kMaxColumns + c) * kBlockRows;
            if (count == kBlockRows) {
              std::memcpy(to, from, kBlockRows * sizeof(float));  // a few moves, not a call
            } else {
              std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
            }
          }
        }
      }
    }
  }

  ThreadPool* const pool_;
  const KernelSet& set_;
  const ActivationKernels kernels_;
  AlignedBuffer workspace_;

  // State of the Run under way; the arrays are in workspace_.
  const float* x_ = nullptr;
  float* out_ = nullptr;
  int64_t hidden_ = 0;
  int64_t x_row_bytes_ = 0;
  int64_t h_row_bytes_ = 0;
  uint8_t* packed_x_ = nullptr;
  uint8_t* packed_h_ = nullptr;
  Plan* plans_ = nullptr;
  int64_t num_plans_ = 0;
  int64_t gate_up_jobs_ = 0;
  int64_t down_jobs_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MixedGroupGemm>> MixedGroupGemm::Create(
    ThreadPool* pool, absl::string_view kernels, ActivationNumerics numerics) {
  if (pool == nullptr) return absl::InvalidArgumentError("MixedGroupGemm needs a thread pool");
  MOERT_ASSIGN_OR_RETURN(const KernelSet* set, kernels::FindKernelSet(kernels, numerics));
  return std::unique_ptr<MixedGroupGemm>(new CpuMixedGroupGemm(pool, *set, numerics));
}

std::vector<std::string> MixedGroupGemm::KernelNames() {
  std::vector<std::string> names;
  for (const KernelSet* set : kernels::SupportedKernelSets()) names.emplace_back(set->name);
  return names;
}

}  // namespace moert
