// Buffers of the layer calls that moert-bench gemm measures, carved as the executor carves its own.
#ifndef MOERT_TESTS_RESEARCH_BENCH_GEMM_BUFFERS_H_
#define MOERT_TESTS_RESEARCH_BENCH_GEMM_BUFFERS_H_

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_format.h"
#include "exec/cuda/products/prompt_plan.h"
#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/route/route.h"
#include "moert/model.h"

namespace moert::cli {

/// The buffers of one layer call; `Carve` as the executor's workspace.
struct LayerBuffers {
  int32_t* ids;
  float* gate;  // of few tokens: routes them as drawn
  cuda::SlotGroups groups;
  cuda::TileTable table;
  cuda::PromptTable prompt;

  void Carve(const MoeLayerSpec& l, int64_t tokens, cuda::Carver* c) {
    const int64_t experts = l.num_experts;
    const int64_t pairs = tokens * l.routing.top_k;
    const int64_t tiles = cuda::MaxTiles(tokens, l.routing.top_k, experts);
    const int64_t units = cuda::MaxPromptExtent(l, tokens, l.num_experts).units;
    ids = c->Take<int32_t>(pairs);
    gate = c->Take<float>(experts * l.hidden);
    groups.sorted = c->Take<int32_t>(pairs);
    groups.firsts = c->Take<int32_t>(experts);
    groups.counts = c->Take<int32_t>(experts);
    groups.chunks = c->Take<int32_t>(cuda::GroupChunks(pairs) * experts);
    table.tiles = c->Take<cuda::Tile>(tiles);
    for (int p = 0; p < 2; ++p) {
      table.starts[p] = c->Take<cuda::Position>(cuda::kMaxShares + 1);
    }
    table.ready = c->Take<int32_t>(tiles);
    table.ticket = c->Take<int32_t>(2);
    prompt.units = c->Take<cuda::PromptUnit>(units);
    prompt.tiles[0] = c->Take<uint32_t>(units * ((l.intermediate + 63) / 64));
    prompt.tiles[1] = c->Take<uint32_t>(units * ((l.hidden + 127) / 128));
    prompt.begins = c->Take<int32_t[cuda::kPromptPackings + 1]>(2);
    prompt.tickets = c->Take<int32_t[cuda::kPromptPackings]>(2);
    prompt.unit_count = c->Take<int32_t>(1);
  }
};

/// Rounded rows of x and their sums.
inline int64_t PromptXStride(const MoeLayerSpec& l) {
  return RoundUp(l.hidden, 64) * 2 + RoundUp(cuda::PromptSums(l.hidden) * 4, 128);
}

/// The products of a version read these.
struct OperandsUsed {
  bool x[cuda::kOperands] = {};  // packed rows of x, by operand
  bool wide_h = false;           // some h is more than rounded before down
};

/// Shared by the layers.
struct SharedBuffers {
  float* x;  // or bf16
  float* y;
  float* logits;
  float* scores;
  float* weights;
  int32_t* drawn_ids;
  uint8_t* packed_x[cuda::kOperands];
  uint8_t* prompt_x;
  uint8_t* h;
  float* wide_h;
  float* h_columns;
  float* out;

  void Carve(const MoeLayerSpec& l, int64_t tokens, const OperandsUsed& used, cuda::Carver* c) {
    const int64_t pairs = tokens * l.routing.top_k;
    x = c->Take<float>(tokens * l.hidden);
    y = c->Take<float>(tokens * l.hidden);
    logits = c->Take<float>(tokens * l.num_experts);
    scores = c->Take<float>(tokens * l.num_experts);
    weights = c->Take<float>(pairs);
    drawn_ids = c->Take<int32_t>(pairs);
    for (int o = 0; o < cuda::kOperands; ++o) {
      packed_x[o] = c->Take<uint8_t>(used.x[o] ? tokens * cuda::OperandBytes(l.hidden) : 0);
    }
    prompt_x = c->Take<uint8_t>(tokens * PromptXStride(l));
    const int64_t inter = RoundUp(l.intermediate, 64);
    h = c->Take<uint8_t>(
        std::max(pairs * cuda::OperandBytes(inter),
                 cuda::MaxPromptExtent(l, tokens, l.num_experts).h_rows * inter * 2));
    const int64_t h_rows = std::max(pairs, cuda::MaxPromptExtent(l, tokens, l.num_experts).h_rows);
    wide_h = c->Take<float>(h_rows * inter);
    h_columns = c->Take<float>(h_rows * cuda::PromptSums(inter));
    out = c->Take<float>(pairs * RoundUp(l.hidden, 64));
  }
};

}  // namespace moert::cli

#endif  // MOERT_TESTS_RESEARCH_BENCH_GEMM_BUFFERS_H_
