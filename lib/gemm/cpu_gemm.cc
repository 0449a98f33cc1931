#include "gemm/cpu_gemm.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "quant/f8_group.h"
#include "quant/hadamard.h"

namespace moert::gemm {

int64_t OperandSizes::OperandBytes(int kind, int64_t channels) const {
  return (CeilDiv(CeilDiv(channels, kKTile) * Kernels(kind).bytes_per_tile, 64) | 1) * 64;
}

int64_t OperandSizes::WidestH(const Forms& forms, int64_t channels) const {
  int64_t bytes = 0;
  for (int kind = 0; kind < kOperandKinds; ++kind) {
    if (forms.h[kind]) bytes = std::max(bytes, OperandBytes(kind, channels));
  }
  return bytes;
}

int64_t OperandSizes::TransformBytes(int64_t hidden, const Forms& forms) const {
  return forms.copies_x ? threads_ * TransformStride(hidden) * static_cast<int64_t>(sizeof(float))
                        : 0;
}

int64_t OperandSizes::WidestGathered(const Forms& forms, int64_t hidden) const {
  int64_t bytes = 0;
  for (int i = 0; i < kInputForms; ++i) {
    const OperandKernels kernels = Kernels(i % kOperandKinds);
    const bool wide = std::any_of(std::begin(kernels.wide), std::end(kernels.wide),
                                  [](BlockGemmFn gemm) { return gemm != nullptr; });
    if (forms.x[i] && wide) bytes = std::max(bytes, OperandBytes(i % kOperandKinds, hidden));
  }
  return bytes;
}

int64_t OperandSizes::GatherBytes(int64_t slots, int64_t hidden, const Forms& forms) const {
  return threads_ * GatherRows(slots) * WidestGathered(forms, hidden) * (forms.apart ? 2 : 1);
}

int64_t OperandSizes::KeptBytes(int64_t slots, int64_t hidden, int64_t widest,
                                const Forms& forms) const {
  if (slots <= kMaxColumns) return 0;
  int64_t bytes = 0;
  for (int i = 0; i < kInputForms; ++i) {
    const int kind = i % kOperandKinds;
    const OperandKernels kernels = Kernels(kind);
    const int64_t most =
        *std::max_element(std::begin(kernels.kept_bytes), std::end(kernels.kept_bytes));
    if (forms.x[i]) bytes = std::max(bytes, CeilDiv(hidden, kKTile) * most);
    if (forms.h[kind]) bytes = std::max(bytes, CeilDiv(widest, kKTile) * most);
  }
  return bytes;
}

int64_t OperandSizes::Workspace(int64_t rows, int64_t slots, int64_t hidden, int64_t widest,
                                const Forms& forms) const {
  int64_t bytes = slots * WidestH(forms, widest);
  for (int i = 0; i < kInputForms; ++i) {
    if (forms.x[i]) bytes += rows * OperandBytes(i % kOperandKinds, hidden);
  }
  bytes += TransformBytes(hidden, forms) + GatherBytes(slots, hidden, forms) +
           RoomForKept(slots, hidden, widest, forms);
  if (forms.keeps_h) bytes += slots * RoundUp(widest, kKTile) * static_cast<int64_t>(sizeof(float));
  return bytes + PlanBytes(slots) +
         RoundUp(slots * static_cast<int64_t>(sizeof(std::atomic<int64_t>)), 64);
}

namespace {

/// Whether the kernels can multiply problem `index` of a call with `rows` rows of x.
absl::Status CheckProblem(const ExpertProblem& p, size_t index, int64_t rows, int64_t hidden,
                          const kernels::KernelSet& set, ActivationNumerics numerics) {
  if (p.record == nullptr || p.layout == nullptr) {
    return InvalidArgument("problem {} has no record or layout", index);
  }
  const RecordLayout& l = *p.layout;
  for (const MatrixLayout* matrix : {&l.gate, &l.up, &l.down}) {
    const kernels::OperandKind kind = kernels::OperandFor(matrix->scheme, numerics);
    const int64_t unit = matrix->scheme.imported() ? kernels::kPieceK : kKTile;
    const bool whole_groups = matrix->scheme.is_bf16() || matrix->group >= matrix->k ||
                              (matrix->group > 0 && matrix->group % unit == 0);
    if (set.For(kind, numerics).gemm[kernels::WeightKindOf(matrix->scheme)] == nullptr ||
        !whole_groups) {
      return Unimplemented("problem {}: no kernel multiplies weights in {} with groups of {}",
                           index, matrix->scheme.Name(), matrix->group);
    }
  }
  if (l.gate.k != hidden || l.up.k != hidden || l.down.rows != hidden || l.up.rows != l.gate.rows ||
      l.down.k != l.gate.rows) {
    return InvalidArgument(
        "problem {}: gate [{}, {}], up [{}, {}], down [{}, {}] are no expert of hidden size {}",
        index, l.gate.rows, l.gate.k, l.up.rows, l.up.k, l.down.rows, l.down.k, hidden);
  }
  const Activation function = p.activation.function;
  if (function < Activation::kSilu || function > Activation::kRelu2) {
    return InvalidArgument("problem {}: unknown activation {}", index, static_cast<int>(function));
  }
  if (p.activation.gated != l.contents.gate) {
    return InvalidArgument("problem {}: its activation takes {} gate, its record has {}", index,
                           p.activation.gated ? "a" : "no", l.contents.gate ? "one" : "none");
  }
  if (p.tokens.size() != p.out_rows.size()) {
    return InvalidArgument("problem {}: {} tokens but {} output rows", index, p.tokens.size(),
                           p.out_rows.size());
  }
  for (const int32_t token : p.tokens) {
    if (token < 0 || token >= rows) {
      return InvalidArgument("problem {}: token {} of {} rows", index, token, rows);
    }
  }
  for (const int32_t row : p.out_rows) {
    if (row < 0) return InvalidArgument("problem {}: output row {}", index, row);
  }
  return absl::OkStatus();
}

using kernels::kMaxBlocks;

// Up to this size, packing x on one thread is cheaper than a parallel step.
constexpr int64_t kPackInline = 4 << 10;
// Up to so many tokens per expert, the thread that ends its last gate and up job packs its h.
constexpr int64_t kPackAtOnce = 8;

template <typename Fn>
void ForRows(ThreadPool* pool, int64_t rows, int64_t channels, const Fn& pack) {
  if (rows * channels <= kPackInline) {
    for (int64_t row = 0; row < rows; ++row) pack(row, 0);
  } else {
    pool->Run(rows, pack);
  }
}

}  // namespace

absl::Status CpuGemm::Run(const float* x, int64_t rows, int64_t hidden,
                          absl::Span<const ExpertProblem> problems, float* out) {
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
  kept_ = next;
  kept_block_bytes_ = sizes_.KeptBytes(slots, hidden, widest, forms);
  next += sizes_.RoomForKept(slots, hidden, widest, forms);
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
  pool_->Run(down_jobs_, [this](int64_t job, int thread) { DownJob(job, thread); });
  return absl::OkStatus();
}

int64_t CpuGemm::WorkspaceBytes(int64_t rows, int64_t slots, int64_t hidden,
                                int64_t max_intermediate,
                                absl::Span<const ExpertFormat> formats) const {
  Forms forms;
  for (const ExpertFormat& format : formats) forms.Add(format, numerics_);
  return sizes_.Workspace(rows, slots, hidden, max_intermediate, forms);
}

int64_t CpuGemm::GatheringBlocks(const RecordLayout& layout, int64_t columns) const {
  const auto is_wide = [&](const Scheme& scheme) {
    const OperandKernels kernels =
        sizes_.Kernels(static_cast<int>(kernels::OperandFor(scheme, numerics_)));
    return ProductOf(kernels, kernels::WeightKindOf(scheme), columns).most == kMaxColumns;
  };
  if (!is_wide(layout.gate.scheme) && !is_wide(layout.up.scheme)) return 1;
  return std::min<int64_t>(6, 1 + columns / 8);
}

void CpuGemm::MakePlans(absl::Span<const ExpertProblem> problems) {
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

void CpuGemm::PackInput(int64_t rows, const Forms& forms) {
  const int64_t k16s = RoundUp(hidden_, kKTile) / kPieceK;
  for (int i = 0; i < kInputForms; ++i) {
    if (!forms.x[i]) continue;
    const OperandKernels kernels = sizes_.Kernels(i % kOperandKinds);
    const int64_t row_bytes = sizes_.OperandBytes(i % kOperandKinds, hidden_);
    ForRows(pool_, rows, hidden_, [&](int64_t row, int thread) {
      const float* from = x_ + row * hidden_;
      const bool rounds = i % kOperandKinds == static_cast<int>(OperandKind::kF8Group);
      if (i >= kOperandKinds || rounds) {
        float* const copy = transformed_ + thread * sizes_.TransformStride(hidden_);
        std::memcpy(copy, from, static_cast<size_t>(hidden_) * sizeof(float));
        if (i >= kOperandKinds) ApplyHadamard(1, hidden_, copy);
        if (rounds) RoundF8Row(hidden_, copy);
        from = copy;
      }
      kernels.pack(from, hidden_, k16s, packed_x_[i] + row * row_bytes);
      if (rows <= pool_->num_threads()) FetchFirst(&Plan::gate_up, gate_up_jobs_, thread);
    });
  }
}

void CpuGemm::PackH(int64_t slots) {
  ForRows(pool_, slots, h_stride_, [this](int64_t slot, int) {
    const Plan* after =
        std::upper_bound(plans_, plans_ + num_plans_, slot,
                         [](int64_t wanted, const Plan& plan) { return wanted < plan.first_slot; });
    const Plan& plan = *(after - 1);
    if (!plan.packs_at_once && !PacksPieces(*plan.problem->layout)) PackHRow(plan, slot);
  });
}

}  // namespace moert::gemm
