// The CPU MixedGroupGemm: validates the problems, lays out the workspace, cuts the work into jobs
// and lets the pool's threads take them. The arithmetic is in kernels/.
//
// A call is three or four parallel steps: pack the rows of x into the operand forms of the
// problems' schemes; all gate and up products with the activation; all down products. For bf16
// weights the 16 results of a row block are at once packed as one operand piece of the down
// product; other forms need what spans pieces (scales, sums, Hadamard blocks), so h is kept in fp32
// and packed by the thread that ends an expert's last gate and up job or, with many tokens, in a
// step of its own. A job is some row blocks of one problem for some of its tokens.
// How jobs are cut changes no result: see kernels/cpu/block_gemm.h.
//
// Wide kernels want rows that lie equally far apart. Those of h do; those of x are copied together
// where an expert's tokens are not evenly spaced, once for all row blocks of a job.
#include "moert/mixed_group_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "gemm/block_product.h"
#include "gemm/check_problem.h"
#include "gemm/jobs.h"
#include "gemm/operand_forms.h"
#include "kernels/cpu/kernel_set.h"
#include "quant/hadamard.h"

namespace moert::gemm {
namespace {

using kernels::kMaxBlocks;

// Up to this, packing x is cheaper than a parallel step for it.
constexpr int64_t kPackInline = 4 << 10;
// Up to so many tokens an expert, whoever ends its last gate and up job packs its h at once.
constexpr int64_t kPackAtOnce = 8;

// Of each matrix that a worker is to begin with in the next step, fetched while it would wait for
// the others: what kernels fetch ahead.
constexpr int64_t kFetchBytes = 8 << 10;

class CpuMixedGroupGemm final : public MixedGroupGemm {
 public:
  CpuMixedGroupGemm(ThreadPool* pool, const KernelSet& set, ActivationNumerics numerics)
      : pool_(pool), set_(set), numerics_(numerics), sizes_(set, numerics, pool->num_threads()) {}

  absl::Status Run(const float* x, int64_t rows, int64_t hidden,
                   absl::Span<const ExpertProblem> problems, float* out) override {
    int64_t slots = 0;
    int64_t widest = 0;
    Forms forms;
    for (size_t i = 0; i < problems.size(); ++i) {
      MOERT_RETURN_IF_ERROR(CheckProblem(problems[i], i, rows, hidden, set_, numerics_));
      if (problems[i].tokens.empty()) continue;
      const RecordLayout& layout = *problems[i].layout;
      slots += static_cast<int64_t>(problems[i].tokens.size());
      widest = std::max(widest, layout.gate.rows);
      forms.Add({layout.gate.scheme, layout.up.scheme, layout.down.scheme, layout.format.hadamard},
                numerics_);
    }
    if (slots == 0) return absl::OkStatus();
    const int64_t needed = sizes_.Workspace(rows, slots, hidden, widest, forms);
    if (workspace_.size() < needed) MOERT_RETURN_IF_ERROR(workspace_.Reset(needed));
    x_ = x;
    out_ = out;
    hidden_ = hidden;
    auto* next = reinterpret_cast<uint8_t*>(workspace_.data());
    for (int i = 0; i < kInputForms; ++i) {
      packed_x_[i] = next;
      if (forms.x[i]) next += rows * sizes_.OperandBytes(i % kOperandKinds, hidden);
    }
    packed_h_ = next;
    h_row_bytes_ = sizes_.WidestH(forms, widest);
    next += slots * h_row_bytes_;
    h_ = reinterpret_cast<float*>(next);
    h_stride_ = RoundUp(widest, kKTile);
    if (forms.keeps_h) next += slots * h_stride_ * static_cast<int64_t>(sizeof(float));
    transformed_ = reinterpret_cast<float*>(next);
    next += sizes_.TransformBytes(hidden, forms);
    gathered_ = next;
    gathered_matrix_bytes_ = sizes_.GatherRows(slots) * sizes_.WidestGathered(forms, hidden);
    gathered_matrices_ = forms.apart ? 2 : 1;
    next += sizes_.GatherBytes(slots, hidden, forms);
    plans_ = reinterpret_cast<Plan*>(next);
    MakePlans(problems);
    pending_ = reinterpret_cast<std::atomic<int64_t>*>(next + sizes_.PlanBytes(slots));
    bool packs_later = false;
    for (int64_t i = 0; i < num_plans_; ++i) {
      new (&pending_[i]) std::atomic<int64_t>(plans_[i].gate_up.jobs());
      packs_later |= !PacksPieces(*plans_[i].problem->layout) && !plans_[i].packs_at_once;
    }

    PackInput(rows, forms);
    pool_->Run(gate_up_jobs_, [this](int64_t job, int thread) { GateUpJob(job, thread); });
    if (packs_later) PackH(slots);
    pool_->Run(down_jobs_, [this](int64_t job, int) { DownJob(job); });
    return absl::OkStatus();
  }

  int64_t WorkspaceBytes(int64_t rows, int64_t slots, int64_t hidden, int64_t max_intermediate,
                         absl::Span<const ExpertFormat> formats) const override {
    Forms forms;
    for (const ExpertFormat& format : formats) forms.Add(format, numerics_);
    return sizes_.Workspace(rows, slots, hidden, max_intermediate, forms);
  }

  absl::string_view kernels() const override { return set_.name; }

 private:
  // Row blocks of a gate and up job, so that the copying of its rows of x is little beside them.
  int64_t GatheringBlocks(const RecordLayout& layout, int64_t columns) const {
    const auto is_wide = [&](const Scheme& scheme) {
      const OperandKernels kernels =
          sizes_.Kernels(static_cast<int>(kernels::OperandFor(scheme, numerics_)));
      return ProductOf(kernels, kernels::WeightKindOf(scheme), columns).most == kMaxColumns;
    };
    if (!is_wide(layout.gate.scheme) && !is_wide(layout.up.scheme)) return 1;
    return std::min<int64_t>(6, 1 + columns / 8);
  }

  void MakePlans(absl::Span<const ExpertProblem> problems) {
    num_plans_ = gate_up_jobs_ = down_jobs_ = 0;
    int64_t gate_up_bytes = 0, down_bytes = 0;
    for (const ExpertProblem& problem : problems) {
      if (problem.tokens.empty()) continue;
      gate_up_bytes += problem.layout->gate.weight_bytes + problem.layout->up.weight_bytes;
      down_bytes += problem.layout->down.weight_bytes;
    }
    gate_up_bytes = JobBytes(gate_up_bytes, pool_->num_threads());
    down_bytes = JobBytes(down_bytes, pool_->num_threads());
    int64_t slot = 0;
    for (const ExpertProblem& problem : problems) {
      const auto columns = static_cast<int64_t>(problem.tokens.size());
      if (columns == 0) continue;
      const MatrixLayout& gate = problem.layout->gate;
      const MatrixLayout& down = problem.layout->down;
      Plan plan;
      plan.problem = &problem;
      plan.first_slot = slot;
      plan.gate_up =
          CutStage(gate.padded_rows / kBlockRows, BlockBytes(gate) + BlockBytes(problem.layout->up),
                   gate_up_bytes, columns, GatheringBlocks(*problem.layout, columns),
                   /*multiple=*/1);
      plan.gate_up.first_job = gate_up_jobs_;
      plan.down = CutStage(down.padded_rows / kBlockRows, BlockBytes(down), down_bytes, columns,
                           /*least=*/1, /*multiple=*/kMaxBlocks);
      plan.packs_at_once = !PacksPieces(*problem.layout) && columns <= kPackAtOnce;
      plan.down.first_job = down_jobs_;
      slot += columns;
      gate_up_jobs_ += plan.gate_up.jobs();
      down_jobs_ += plan.down.jobs();
      plans_[num_plans_++] = plan;
    }
  }

  // Where the jobs of a worker begin, as pools that give each an equal part in order have it. With
  // another pool what follows from it is of no use, and does no harm.
  int64_t FirstJob(int64_t jobs, int worker) const { return jobs * worker / pool_->num_threads(); }

  // Fetches the first weights of a worker's jobs of a step into the L2 cache.
  void FetchFirst(Stage Plan::*stage, int64_t jobs, int worker) const {
    const int64_t job = FirstJob(jobs, worker);
    if (job == FirstJob(jobs, worker + 1)) return;
    const Plan& plan = PlanOf(job, stage);
    const int64_t block = RangeOf(plan.*stage, job, 1).block_begin;
    const RecordLayout& layout = *plan.problem->layout;
    const auto fetch = [&](const MatrixLayout& matrix) {
      const int64_t from = block * BlockBytes(matrix);
      const std::byte* weights = plan.problem->record + matrix.weight_offset + from;
      const int64_t bytes = std::min(kFetchBytes, matrix.weight_bytes - from);
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(weights + at, 0, 2);
    };
    if (stage == &Plan::down) return fetch(layout.down);
    fetch(layout.gate);
    fetch(layout.up);
  }

  const Plan& PlanOf(int64_t job, Stage Plan::*stage) const {
    const Plan* after = std::upper_bound(
        plans_, plans_ + num_plans_, job,
        [stage](int64_t j, const Plan& plan) { return j < (plan.*stage).first_job; });
    return *(after - 1);
  }

  // Whether gate and up jobs pack h, piece by piece: else it is kept in fp32 for PackH.
  bool PacksPieces(const RecordLayout& layout) const {
    return !layout.format.hadamard &&
           kernels::OperandFor(layout.down.scheme, numerics_) == OperandKind::kPlain;
  }

  template <typename Fn>
  void ForRows(int64_t rows, int64_t channels, const Fn& pack) {
    if (rows * channels <= kPackInline) {
      for (int64_t row = 0; row < rows; ++row) pack(row, 0);
    } else {
      pool_->Run(rows, pack);
    }
  }

  void PackInput(int64_t rows, const Forms& forms) {
    const int64_t k16s = RoundUp(hidden_, kKTile) / kPieceK;
    for (int i = 0; i < kInputForms; ++i) {
      if (!forms.x[i]) continue;
      const OperandKernels kernels = sizes_.Kernels(i % kOperandKinds);
      const int64_t row_bytes = sizes_.OperandBytes(i % kOperandKinds, hidden_);
      ForRows(rows, hidden_, [&](int64_t row, int thread) {
        const float* from = x_ + row * hidden_;
        if (i >= kOperandKinds) {
          float* const copy = transformed_ + thread * sizes_.TransformStride(hidden_);
          std::memcpy(copy, from, static_cast<size_t>(hidden_) * sizeof(float));
          ApplyHadamard(1, hidden_, copy);
          from = copy;
        }
        kernels.pack(from, hidden_, k16s, packed_x_[i] + row * row_bytes);
        if (rows <= pool_->num_threads()) FetchFirst(&Plan::gate_up, gate_up_jobs_, thread);
      });
    }
  }

  void PackH(int64_t slots) {
    ForRows(slots, h_stride_, [this](int64_t slot, int) {
      const Plan* after = std::upper_bound(
          plans_, plans_ + num_plans_, slot,
          [](int64_t wanted, const Plan& plan) { return wanted < plan.first_slot; });
      const Plan& plan = *(after - 1);
      if (!plan.packs_at_once && !PacksPieces(*plan.problem->layout)) PackHRow(plan, slot);
    });
  }

  // The Hadamard transform is no pass of its own: the row is in the L1 cache.
  void PackHRow(const Plan& plan, int64_t slot) const {
    const RecordLayout& layout = *plan.problem->layout;
    const MatrixLayout& down = layout.down;
    float* const h = h_ + slot * h_stride_;
    if (layout.format.hadamard) ApplyHadamard(1, down.k, h);
    sizes_.Kernels(static_cast<int>(kernels::OperandFor(down.scheme, numerics_)))
        .pack(h, down.k, down.padded_k / kPieceK, packed_h_ + slot * h_row_bytes_);
  }

  // What multiplies gate or up with the tokens of a job. `room`: where rows may be copied together.
  Product ProductOfX(const ExpertProblem& problem, const MatrixLayout& matrix,
                     const JobRange& range, uint8_t* room) const {
    const auto kind = static_cast<int>(kernels::OperandFor(matrix.scheme, numerics_));
    const int64_t columns = range.column_end - range.column_begin;
    Product product =
        ProductOf(sizes_.Kernels(kind), kernels::WeightKindOf(matrix.scheme), columns);
    if (product.most == kNarrowColumns) return product;
    const uint8_t* const rows =
        packed_x_[InputForm(matrix.scheme, problem.layout->format.hadamard, numerics_)];
    const int64_t row_bytes = sizes_.OperandBytes(kind, hidden_);
    const auto tokens = problem.tokens.subspan(static_cast<size_t>(range.column_begin),
                                               static_cast<size_t>(columns));
    const int64_t step = columns > 1 ? int64_t{tokens[1]} - tokens[0] : 0;
    bool even = true;
    for (size_t c = 2; c < tokens.size() && even; ++c) even = tokens[c] - tokens[c - 1] == step;
    product.first = even ? rows + tokens[0] * row_bytes : room;
    product.stride = even ? step * row_bytes : row_bytes;
    for (size_t c = 0; c < tokens.size() && !even; ++c) {
      std::memcpy(room + static_cast<int64_t>(c) * row_bytes, rows + tokens[c] * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
    return product;
  }

  // One product of `args.blocks` row blocks with the columns [column, column + args.columns) of x.
  void MultiplyX(const ExpertProblem& problem, const MatrixLayout& matrix, const JobRange& range,
                 const Product& product, int64_t column, BlockGemmArgs* args) const {
    if (product.first != nullptr) {
      const uint8_t* row = product.first + (column - range.column_begin) * product.stride;
      for (int c = 0; c < args->columns; ++c, row += product.stride) args->x[c] = row;
    } else {
      const int form = InputForm(matrix.scheme, problem.layout->format.hadamard, numerics_);
      const int64_t row_bytes = sizes_.OperandBytes(form % kOperandKinds, hidden_);
      for (int c = 0; c < args->columns; ++c) {
        args->x[c] = packed_x_[form] + problem.tokens[static_cast<size_t>(column + c)] * row_bytes;
      }
    }
    product.gemm(*args);
  }

  void GateUpJob(int64_t job, int thread) const {
    const Plan& plan = PlanOf(job, &Plan::gate_up);
    const ExpertProblem& problem = *plan.problem;
    const RecordLayout& layout = *problem.layout;
    const JobRange range = RangeOf(plan.gate_up, job, static_cast<int64_t>(problem.tokens.size()));
    const bool tied = layout.gate.scheme == layout.up.scheme;
    const kernels::GluFn glu = set_.glu[static_cast<int>(problem.activation)];
    const bool packs = PacksPieces(layout);
    const OperandKernels down = sizes_.Kernels(static_cast<int>(OperandKind::kPlain));
    alignas(64) float product[kMaxBlocks * kMaxColumns * kBlockRows];
    alignas(64) float h[kMaxColumns * kBlockRows];
    uint8_t* const room = gathered_ + thread * gathered_matrix_bytes_ * (gathered_matrices_);
    const Product gate_product = ProductOfX(problem, layout.gate, range, room);
    const Product up_product =
        tied ? gate_product : ProductOfX(problem, layout.up, range, room + gathered_matrix_bytes_);
    const int64_t most = std::min(gate_product.most, up_product.most);

    BlockGemmArgs args = {};
    BlockGemmArgs up = {};  // when it is a product of its own
    args.blocks = tied ? 2 : 1;
    up.blocks = 1;
    args.out = product;
    up.out = product + kMaxColumns * kBlockRows;
    DescribeGroups(layout.gate, kernels::OperandFor(layout.gate.scheme, numerics_), &args);
    DescribeGroups(layout.up, kernels::OperandFor(layout.up.scheme, numerics_), &up);
    for (int64_t block = range.block_begin; block < range.block_end; ++block) {
      PointAt(problem, layout.gate, block, 0, &args);
      if (tied) {
        PointAt(problem, layout.up, block, 1, &args);
      } else {
        PointAt(problem, layout.up, block, 0, &up);
        up.next = up.weights[0] + BlockBytes(layout.up);
      }
      args.next = args.weights[0] + BlockBytes(layout.gate);
      for (int64_t column = range.column_begin; column < range.column_end; column += most) {
        args.columns = static_cast<int>(std::min(most, range.column_end - column));
        for (int c = 0; c < args.columns && !packs; ++c) {
          PrefetchForWrite(h_ + (plan.first_slot + column + c) * h_stride_ + block * kBlockRows);
        }
        MultiplyX(problem, layout.gate, range, gate_product, column, &args);
        if (!tied) {
          up.columns = args.columns;
          MultiplyX(problem, layout.up, range, up_product, column, &up);
        }
        glu(product, product + kMaxColumns * kBlockRows, args.columns * kBlockRows, h);
        for (int c = 0; c < args.columns; ++c) {
          const int64_t slot = plan.first_slot + column + c;
          if (packs) {
            PackPiece(layout, block, h + c * kBlockRows, down, packed_h_ + slot * h_row_bytes_);
          } else {
            std::memcpy(h_ + slot * h_stride_ + block * kBlockRows, h + c * kBlockRows,
                        kBlockRows * sizeof(float));
          }
        }
      }
    }
    if (plan.packs_at_once && pending_[&plan - plans_].fetch_sub(1) == 1) {
      for (size_t i = 0; i < problem.tokens.size(); ++i) {
        PackHRow(plan, plan.first_slot + static_cast<int64_t>(i));
      }
    }
    if (job + 1 == FirstJob(gate_up_jobs_, thread + 1)) {
      FetchFirst(&Plan::down, down_jobs_, thread);
    }
  }

  // The 16 channels of h that row block `block` gave, as one piece of a plain operand.
  static void PackPiece(const RecordLayout& layout, int64_t block, const float* h,
                        const OperandKernels& kernels, uint8_t* row) {
    const int64_t piece = kernels.bytes_per_tile / kernels::kTilePieces;
    kernels.pack(h, kBlockRows, 1, row + block * piece);
    if (block + 1 == layout.gate.padded_rows / kBlockRows) {
      // The padding that rounds intermediate up to a K tile: zero, for 0 x NaN is NaN.
      const int64_t pieces = layout.down.padded_k / kPieceK;
      std::memset(row + (block + 1) * piece, 0, static_cast<size_t>((pieces - block - 1) * piece));
    }
  }

  void DownJob(int64_t job) const {
    const Plan& plan = PlanOf(job, &Plan::down);
    const ExpertProblem& problem = *plan.problem;
    const MatrixLayout& down = problem.layout->down;
    const JobRange range = RangeOf(plan.down, job, static_cast<int64_t>(problem.tokens.size()));
    const OperandKind kind = kernels::OperandFor(down.scheme, numerics_);
    const Product down_product =
        ProductOf(sizes_.Kernels(static_cast<int>(kind)), kernels::WeightKindOf(down.scheme),
                  range.column_end - range.column_begin);
    alignas(64) float product[kMaxBlocks * kMaxColumns * kBlockRows];

    BlockGemmArgs args = {};
    args.out = product;
    DescribeGroups(down, kind, &args);
    for (int64_t block = range.block_begin; block < range.block_end; block += kMaxBlocks) {
      args.blocks = static_cast<int>(std::min<int64_t>(kMaxBlocks, range.block_end - block));
      for (int b = 0; b < args.blocks; ++b) PointAt(problem, down, block + b, b, &args);
      args.next = args.weights[0] + args.blocks * BlockBytes(down);
      for (int64_t column = range.column_begin; column < range.column_end;
           column += down_product.most) {
        args.columns = static_cast<int>(std::min(down_product.most, range.column_end - column));
        for (int c = 0; c < args.columns; ++c) {
          const int64_t row = problem.out_rows[static_cast<size_t>(column + c)];
          for (int b = 0; b < args.blocks; ++b) {
            PrefetchForWrite(out_ + row * hidden_ + (block + b) * kBlockRows);
          }
          args.x[c] = packed_h_ + (plan.first_slot + column + c) * h_row_bytes_;
        }
        down_product.gemm(args);
        Scatter(problem, block, args.blocks, column, args.columns, product);
      }
    }
  }

  void Scatter(const ExpertProblem& problem, int64_t block, int blocks, int64_t column, int columns,
               const float* product) const {
    for (int b = 0; b < blocks; ++b) {
      const int64_t first = (block + b) * kBlockRows;
      const int64_t count = std::min<int64_t>(kBlockRows, hidden_ - first);
      for (int c = 0; c < columns; ++c) {
        const int64_t row = problem.out_rows[static_cast<size_t>(column + c)];
        float* to = out_ + row * hidden_ + first;
        const float* from = product + (b * kMaxColumns + c) * kBlockRows;
        if (count == kBlockRows) {
          std::memcpy(to, from,
                      kBlockRows * sizeof(float));  // a few moves, not a call
        } else {
          std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
        }
      }
    }
  }

  ThreadPool* const pool_;
  const KernelSet& set_;
  const ActivationNumerics numerics_;
  const OperandSizes sizes_;
  AlignedBuffer workspace_;

  // State of the Run under way; the arrays are in workspace_.
  const float* x_ = nullptr;
  float* out_ = nullptr;
  int64_t hidden_ = 0;
  uint8_t* packed_x_[kInputForms] = {};
  float* transformed_ = nullptr;  // a row of x a thread, on its way into a Hadamard form
  uint8_t* gathered_ = nullptr;   // rows of x that a job brings together, a thread
  int64_t gathered_matrix_bytes_ = 0;
  int64_t gathered_matrices_ = 1;  // 2 if gate and up may be two products
  uint8_t* packed_h_ = nullptr;    // each slot in the form of its down matrix
  int64_t h_row_bytes_ = 0;
  float* h_ = nullptr;  // where it is not packed as it is made
  int64_t h_stride_ = 0;
  Plan* plans_ = nullptr;
  std::atomic<int64_t>* pending_ = nullptr;  // by plan: gate and up jobs that are not done
  int64_t num_plans_ = 0;
  int64_t gate_up_jobs_ = 0;
  int64_t down_jobs_ = 0;
};

}  // namespace
}  // namespace moert::gemm

namespace moert {

absl::StatusOr<std::unique_ptr<MixedGroupGemm>> MixedGroupGemm::Create(
    ThreadPool* pool, absl::string_view kernels, ActivationNumerics numerics) {
  if (pool == nullptr) return absl::InvalidArgumentError("MixedGroupGemm needs a thread pool");
  if (numerics < ActivationNumerics::kBF16 || numerics > ActivationNumerics::kInt8) {
    return absl::InvalidArgumentError(
        fmt::format("unknown activation numerics {}", static_cast<int>(numerics)));
  }
  MOERT_ASSIGN_OR_RETURN(const kernels::KernelSet* set, kernels::FindKernelSet(kernels));
  return std::unique_ptr<MixedGroupGemm>(new gemm::CpuMixedGroupGemm(pool, *set, numerics));
}

std::vector<std::string> MixedGroupGemm::KernelNames() {
  std::vector<std::string> names;
  for (const kernels::KernelSet* set : kernels::SupportedKernelSets())
    names.emplace_back(set->name);
  return names;
}

}  // namespace moert
