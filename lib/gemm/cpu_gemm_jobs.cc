// Jobs of the CPU's MixedGroupGemm: some row blocks of one problem for some of its tokens.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "gemm/cpu_gemm.h"
#include "quant/f8_group.h"
#include "quant/hadamard.h"

namespace moert::gemm {
namespace {

using kernels::kMaxBlocks;

// While a worker would wait for the others, it prefetches so many bytes of each matrix that it
// begins with in the next step: as many as kernels prefetch ahead.
constexpr int64_t kFetchBytes = 8 << 10;

// Points at row block `block` of gate and of up: both in `args` if that has two blocks, else up's
// in `up` if there is a gate.
void PointAtGateUp(const ExpertProblem& problem, int64_t block, BlockGemmArgs* args,
                   BlockGemmArgs* up) {
  const RecordLayout& layout = *problem.layout;
  PointAt(problem, layout.gate, block, 0, args);
  if (args->blocks == 2) {
    PointAt(problem, layout.up, block, 1, args);
  } else if (layout.contents.gate) {
    PointAt(problem, layout.up, block, 0, up);
    up->next = up->weights[0] + BlockBytes(layout.up);
  }
  args->next = args->weights[0] + BlockBytes(layout.gate);
}

}  // namespace

void CpuGemm::FetchFirst(Stage Plan::*stage, int64_t jobs, int worker) const {
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

void CpuGemm::PackHRow(const Plan& plan, int64_t slot) const {
  const RecordLayout& layout = *plan.problem->layout;
  const MatrixLayout& down = layout.down;
  float* const h = h_ + slot * h_stride_;
  const OperandKind kind = kernels::OperandFor(down.scheme, numerics_);
  if (layout.format.hadamard) ApplyHadamard(1, down.k, h);
  if (kind == OperandKind::kF8Group) RoundF8Row(down.k, h);
  sizes_.Kernels(static_cast<int>(kind))
      .pack(h, down.k, down.padded_k / kPieceK, packed_h_ + slot * h_row_bytes_);
}

Product CpuGemm::ProductOfX(const ExpertProblem& problem, const MatrixLayout& matrix,
                            const JobRange& range, uint8_t* room) const {
  const auto kind = static_cast<int>(kernels::OperandFor(matrix.scheme, numerics_));
  const int64_t columns = range.column_end - range.column_begin;
  Product product = ProductOf(sizes_.Kernels(kind), kernels::WeightKindOf(matrix.scheme), columns);
  if (product.most == kNarrowColumns) return product;
  const uint8_t* const rows =
      packed_x_[InputForm(matrix.scheme, problem.layout->format.hadamard, numerics_)];
  const int64_t row_bytes = sizes_.OperandBytes(kind, hidden_);
  const auto tokens = problem.tokens.subspan(range.column_begin, columns);
  const int64_t step = columns > 1 ? int64_t{tokens[1]} - tokens[0] : 0;
  bool even = true;
  for (size_t c = 2; c < tokens.size() && even; ++c) even = tokens[c] - tokens[c - 1] == step;
  product.first = even ? rows + tokens[0] * row_bytes : room;
  product.stride = even ? step * row_bytes : row_bytes;
  for (size_t c = 0; c < tokens.size() && !even; ++c) {
    std::memcpy(room + static_cast<int64_t>(c) * row_bytes, rows + tokens[c] * row_bytes,
                row_bytes);
  }
  return product;
}

void CpuGemm::MultiplyX(const ExpertProblem& problem, const MatrixLayout& matrix,
                        const JobRange& range, const Product& product, int64_t column,
                        BlockGemmArgs* args) const {
  if (product.first != nullptr) {
    const uint8_t* row = product.first + (column - range.column_begin) * product.stride;
    for (int c = 0; c < args->columns; ++c, row += product.stride) args->x[c] = row;
  } else {
    const int form = InputForm(matrix.scheme, problem.layout->format.hadamard, numerics_);
    const int64_t row_bytes = sizes_.OperandBytes(form % kOperandKinds, hidden_);
    for (int c = 0; c < args->columns; ++c) {
      args->x[c] = packed_x_[form] + problem.tokens[column + c] * row_bytes;
    }
  }
  product.gemm(*args);
}

void CpuGemm::GateUpJob(int64_t job, int thread) const {
  const Plan& plan = PlanOf(job, &Plan::gate_up);
  const ExpertProblem& problem = *plan.problem;
  const RecordLayout& layout = *problem.layout;
  const JobRange range = RangeOf(plan.gate_up, job, static_cast<int64_t>(problem.tokens.size()));
  const bool gated = layout.contents.gate;
  const bool tied = layout.gate.scheme == layout.up.scheme;
  const bool packs = PacksPieces(layout);
  alignas(64) float product[kMaxBlocks * kMaxColumns * kBlockRows];
  alignas(64) float h[kMaxColumns * kBlockRows];
  uint8_t* const room = gathered_ + thread * gathered_matrix_bytes_ * (gathered_matrices_);
  const Product gate_product = ProductOfX(problem, layout.gate, range, room);
  const Product up_product =
      tied ? gate_product : ProductOfX(problem, layout.up, range, room + gathered_matrix_bytes_);
  const int64_t most = std::min(gate_product.most, up_product.most);

  BlockGemmArgs args = {};
  BlockGemmArgs up = {};  // used if up is a separate product
  args.blocks = tied && gated ? 2 : 1;
  up.blocks = 1;
  args.out = product;
  up.out = product + kMaxColumns * kBlockRows;
  DescribeGroups(layout.gate, kernels::OperandFor(layout.gate.scheme, numerics_), &args);
  DescribeGroups(layout.up, kernels::OperandFor(layout.up.scheme, numerics_), &up);
  const int64_t columns = range.column_end - range.column_begin;
  uint8_t* const kept = kept_ + thread * kMaxBlocks * kept_block_bytes_;
  KeepTiles(gate_product, columns, kept, kept_block_bytes_, &args);
  KeepTiles(up_product, columns, kept + kept_block_bytes_, 0, &up);
  for (int64_t block = range.block_begin; block < range.block_end; ++block) {
    PointAtGateUp(problem, block, &args, &up);
    for (int64_t column = range.column_begin; column < range.column_end; column += most) {
      args.columns = static_cast<int>(std::min(most, range.column_end - column));
      args.tiles_kept = args.tiles[0] != nullptr && column > range.column_begin;
      up.tiles_kept = up.tiles[0] != nullptr && column > range.column_begin;
      for (int c = 0; c < args.columns && !packs; ++c) {
        PrefetchForWrite(h_ + (plan.first_slot + column + c) * h_stride_ + block * kBlockRows);
      }
      MultiplyX(problem, layout.gate, range, gate_product, column, &args);
      if (!tied) {
        up.columns = args.columns;
        MultiplyX(problem, layout.up, range, up_product, column, &up);
      }
      AddBias(BiasOf(problem, layout.gate, block), args.columns, product);
      if (gated) {
        AddBias(BiasOf(problem, layout.up, block), args.columns,
                product + kMaxColumns * kBlockRows);
      }
      Activate(problem.activation, args.columns * kBlockRows, product,
               product + kMaxColumns * kBlockRows, h);
      StoreH(layout, block, plan.first_slot + column, args.columns, h);
    }
  }
  if (plan.packs_at_once) PackBehindLast(plan);
  if (job + 1 == FirstJob(gate_up_jobs_, thread + 1)) FetchFirst(&Plan::down, down_jobs_, thread);
}

void CpuGemm::PackBehindLast(const Plan& plan) const {
  if (pending_[&plan - plans_].fetch_sub(1) != 1) return;
  for (size_t i = 0; i < plan.problem->tokens.size(); ++i) {
    PackHRow(plan, plan.first_slot + static_cast<int64_t>(i));
  }
}

void CpuGemm::StoreH(const RecordLayout& layout, int64_t block, int64_t first_slot, int columns,
                     const float* h) const {
  const bool packs = PacksPieces(layout);
  const OperandKernels down = sizes_.Kernels(static_cast<int>(OperandKind::kPlain));
  const bool rounds = kernels::RoundsH(layout.down.scheme, layout.format.hadamard, numerics_);
  for (int c = 0; c < columns; ++c) {
    const int64_t slot = first_slot + c;
    if (packs) {
      PackPiece(layout, block, h + c * kBlockRows, down, packed_h_ + slot * h_row_bytes_);
      continue;
    }
    float* const to = h_ + slot * h_stride_ + block * kBlockRows;
    if (rounds) {
      RoundToBf16<kBlockRows>(h + c * kBlockRows, to);
    } else {
      std::memcpy(to, h + c * kBlockRows, kBlockRows * sizeof(float));
    }
  }
}

void CpuGemm::Activate(const ExpertActivation& a, int64_t count, float* gate, float* up,
                       float* h) const {
  // silu(alpha x) / alpha is x sigmoid(alpha x).
  if (!a.gated) {
    std::fill(up, up + count, 1.0f / a.alpha);
    for (int64_t i = 0; i < count && a.alpha != 1; ++i) gate[i] *= a.alpha;
  } else if (!a.plain()) {
    const float limit = a.limit > 0 ? a.limit : std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < count; ++i) {
      gate[i] = a.alpha * (gate[i] > limit ? limit : gate[i]);  // NaN stays
      const float clamped = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
      up[i] = (clamped + a.up_offset) / a.alpha;
    }
  }
  if (a.function == Activation::kRelu2) {
    for (int64_t i = 0; i < count; ++i) {
      const float x = gate[i] < 0 ? 0.0f : gate[i];
      h[i] = x * x * up[i];
    }
    return;
  }
  set_.glu[static_cast<int>(a.function)](gate, up, count, h);
}

void CpuGemm::PackPiece(const RecordLayout& layout, int64_t block, const float* h,
                        const OperandKernels& kernels, uint8_t* row) {
  const int64_t piece = kernels.bytes_per_tile / kernels::kTilePieces;
  kernels.pack(h, kBlockRows, 1, row + block * piece);
  if (block + 1 == layout.gate.padded_rows / kBlockRows) {
    // Zeroes the padding up to a multiple of a K tile: garbage could be NaN, and 0 x NaN is NaN.
    const int64_t pieces = layout.down.padded_k / kPieceK;
    std::memset(row + (block + 1) * piece, 0, (pieces - block - 1) * piece);
  }
}

void CpuGemm::DownJob(int64_t job, int thread) const {
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
  KeepTiles(down_product, range.column_end - range.column_begin,
            kept_ + thread * kMaxBlocks * kept_block_bytes_, kept_block_bytes_, &args);
  for (int64_t block = range.block_begin; block < range.block_end; block += kMaxBlocks) {
    args.blocks = static_cast<int>(std::min<int64_t>(kMaxBlocks, range.block_end - block));
    for (int b = 0; b < args.blocks; ++b) PointAt(problem, down, block + b, b, &args);
    args.next = args.weights[0] + args.blocks * BlockBytes(down);
    for (int64_t column = range.column_begin; column < range.column_end;
         column += down_product.most) {
      args.columns = static_cast<int>(std::min(down_product.most, range.column_end - column));
      args.tiles_kept = args.tiles[0] != nullptr && column > range.column_begin;
      for (int c = 0; c < args.columns; ++c) {
        const int64_t row = problem.out_rows[column + c];
        for (int b = 0; b < args.blocks; ++b) {
          PrefetchForWrite(out_ + row * hidden_ + (block + b) * kBlockRows);
        }
        args.x[c] = packed_h_ + (plan.first_slot + column + c) * h_row_bytes_;
      }
      down_product.gemm(args);
      for (int b = 0; b < args.blocks; ++b) {
        AddBias(BiasOf(problem, down, block + b), args.columns,
                product + b * kMaxColumns * kBlockRows);
      }
      Scatter(problem, block, args.blocks, column, args.columns, product);
    }
  }
}

void CpuGemm::Scatter(const ExpertProblem& problem, int64_t block, int blocks, int64_t column,
                      int columns, const float* product) const {
  for (int b = 0; b < blocks; ++b) {
    const int64_t first = (block + b) * kBlockRows;
    const int64_t count = std::min<int64_t>(kBlockRows, hidden_ - first);
    for (int c = 0; c < columns; ++c) {
      const int64_t row = problem.out_rows[column + c];
      float* to = out_ + row * hidden_ + first;
      const float* from = product + (b * kMaxColumns + c) * kBlockRows;
      if (count == kBlockRows) {
        std::memcpy(to, from,
                    kBlockRows * sizeof(float));  // constant size: no library call
      } else {
        std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      }
    }
  }
}

}  // namespace moert::gemm
