// The executor's buffers in device memory.
#ifndef MOERT_LIB_EXEC_CUDA_WORKSPACE_H_
#define MOERT_LIB_EXEC_CUDA_WORKSPACE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/checked_math.h"
#include "exec/backend.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_format.h"
#include "kernels/cuda/cache/cpu_mailbox.h"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/served_prefetch.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/route/expert_cache.h"
#include "kernels/cuda/route/route.h"
#include "moert/model.h"
#include "route/request_slots.h"

namespace moert::cuda {

/// The largest value of each dimension over a model's layers.
struct Extent {
  int64_t tokens = 0, pairs = 0, slots = 0, experts = 0, hidden = 0, intermediate = 0, tiles = 0;
  int64_t x_rows = 0;  // rows of input: one per token, and per slot where weights multiply inputs
  bool by_token = false;  // some layer is routed by token ids
  int64_t prompt_units = 0, prompt_h_rows = 0;
  ServedRules served;
  OperandUse use;
  std::vector<int64_t>
      routed;  // [L]: experts that tokens are spread over, including those of other shards

  /// `numbering`: the shard's; null or empty: the engine has all experts.
  Extent(const MoeModelSpec& model, const OperandUse& operands, int64_t max_tokens,
         const ExpertNumbering* numbering, const ServedRules& rules = {})
      : tokens(max_tokens), served(rules), use(operands) {
    for (const MoeLayerSpec& l : model.layers) {
      const size_t at = routed.size();
      const bool part = numbering != nullptr && !numbering->empty();
      routed.push_back(part ? static_cast<int64_t>((*numbering)[at].size()) : l.num_experts);
      pairs = std::max(pairs, max_tokens * l.routing.top_k);
      experts = std::max<int64_t>(experts, l.num_experts);
      hidden = std::max(hidden, RoundUp(l.hidden, 64));
      intermediate =
          std::max({intermediate, RoundUp(l.intermediate, 64), RoundUp(l.shared_intermediate, 64)});
      const int64_t of_slots = l.routing.weight_input ? max_tokens * l.routing.top_k : 0;
      x_rows = std::max(x_rows, of_slots + max_tokens);
      by_token = by_token || l.routing.hash_vocab > 0;
      tiles = std::max(tiles, MaxTiles(max_tokens, l.routing.top_k, l.num_experts));
      const PromptExtent prompt = MaxPromptExtent(l, max_tokens, routed.back());
      prompt_units = std::max(prompt_units, prompt.units);
      prompt_h_rows = std::max(prompt_h_rows, prompt.h_rows);
    }
    slots = pairs + tokens;
  }
  int64_t x_stride() const { return OperandBytes(hidden); }
  int64_t h_stride() const { return OperandBytes(intermediate); }
  bool prompts() const { return use.prompt.any(); }
  /// A row of rounded channels, followed by their sums if some product needs them.
  int64_t prompt_x_stride() const {
    return hidden * 2 + (use.prompt.zeros() ? RoundUp(PromptSums(hidden) * 4, 128) : 0);
  }
  int64_t prompt_h_stride() const { return intermediate * 2; }
  /// Bytes of h before it is quantized: floats by slot, or a prompt's rows in bf16.
  int64_t wide_h_bytes() const {
    const int64_t floats = slots * intermediate * 4;
    return use.prompt.bytes() ? std::max(floats, prompt_h_rows * prompt_h_stride()) : floats;
  }
  /// The floats that accompany a row of h (PromptGemmArgs).
  int64_t prompt_h_columns() const {
    return use.prompt.bytes() || use.prompt.zeros() ? PromptSums(intermediate) : 0;
  }
  int64_t h_bytes() const {
    return std::max(slots * h_stride(), prompts() ? prompt_h_rows * prompt_h_stride() : 0);
  }
};

/// Rows of the residency table: all layers, each with its shared expert last.
inline int64_t HandleCount(const MoeModelSpec& model) {
  return model.total_experts() + model.num_layers();
}

/// Requests whose accounts are remembered, in addition to those of the running call.
constexpr int64_t kRememberedRequests = 1024;

/// Buffers of the expert-cache rule, and of low answers.
struct RuleBuffers {
  int32_t* account_of;  // [tokens]
  int32_t* rows_apart;  // whether all rows have different accounts
  RequestAccount* accounts;
  double* worst_shares;
  ExpertCacheToken* scratch;
  int32_t* own_ids;  // [pairs]
  float* own_weights;
  LowAccount* low_accounts;  // of the same requests; null: nothing is answered low

  void Carve(const Extent& e, Carver* c) {
    account_of = c->Take<int32_t>(e.tokens);
    rows_apart = c->Take<int32_t>(1);
    const int64_t requests = RequestSlots::Capacity(kRememberedRequests, e.tokens);
    accounts = c->Take<RequestAccount>(requests);
    worst_shares = c->Take<double>(2);
    scratch = c->Take<ExpertCacheToken>(e.tokens);
    own_ids = c->Take<int32_t>(e.pairs);
    own_weights = c->Take<float>(e.pairs);
    low_accounts = e.served.low() ? c->Take<LowAccount>(requests) : nullptr;
  }
};

/// Which expert is in which slot of which layer. The host hands the table over, and the device then
/// updates it. Arrays hold the experts of all layers, layer by layer; a layer has room for one slot
/// per expert.
struct ServedTable {
  ServedLayer* layers;
  ServedExpert* experts;
  ExpertUse* use;
  LayerPrefetch* prefetch;  // [layers]
  uint8_t** slots;          // addresses of the slots
  double* sums;             // of scores, by expert; empty if the window is 0
  float* scores;            // [layers][window, experts]

  void Carve(const MoeModelSpec& model, const ServedRules& rules, Carver* c) {
    const int64_t window = rules.score_window;
    layers = c->Take<ServedLayer>(model.num_layers());
    experts = c->Take<ServedExpert>(model.total_experts());
    use = c->Take<ExpertUse>(model.total_experts());
    prefetch = c->Take<LayerPrefetch>(model.num_layers());
    slots = c->Take<uint8_t*>(model.total_experts());
    sums = c->Take<double>(window > 0 ? model.total_experts() : 0);
    scores = c->Take<float>(window * model.total_experts());
  }
};

inline TileTable CarveTiles(const Extent& e, Carver* c) {
  TileTable table;
  table.tiles = c->Take<Tile>(e.tiles);
  for (Position*& starts : table.starts) starts = c->Take<Position>(kMaxShares + 1);
  table.ready = c->Take<int32_t>(e.tiles);
  table.ticket = c->Take<int32_t>(2);
  return table;
}

/// Buffers for misses that the CPU takes.
struct CpuBuffers {
  CpuCall* call;
  CpuCosts* costs;
  int32_t* slots;         // [pairs]
  ExpertHandle* handles;  // [experts + 1]
  TileTable tiles;        // of experts that were taken back from the CPU

  void Carve(const Extent& e, Carver* c) {
    call = c->Take<CpuCall>(1);
    costs = c->Take<CpuCosts>(1);
    slots = c->Take<int32_t>(e.pairs);
    handles = c->Take<ExpertHandle>(e.experts + 1);
    tiles = CarveTiles(e, c);
  }
};

/// Buffers for misses that the device serves.
struct ServedBuffers {
  ServedTable table;
  ServedRecord* records;  // in the order of the table's experts
  ServedRecord* low;      // likewise, of the lower version; null: no low answers
  ServedTally* tally;     // [layers]
  uint32_t* taken;        // in the order of the table's experts; null: the CPU takes nothing
  ExpertHandle* ready;    // [experts + 1]
  ExpertHandle* late;     // [experts + 1]
  RecordCopy* copies;     // [experts]
  int32_t* num_copies;
  TileTable late_tiles;
  PredictionMemory predictions;
  CpuBuffers cpu;  // empty unless the CPU takes misses

  void Carve(const MoeModelSpec& model, const Extent& e, Carver* c) {
    table.Carve(model, e.served, c);
    records = c->Take<ServedRecord>(model.total_experts());
    low = e.served.low() ? c->Take<ServedRecord>(model.total_experts()) : nullptr;
    tally = c->Take<ServedTally>(model.num_layers());
    taken = e.served.cpu() ? c->Take<uint32_t>(model.total_experts()) : nullptr;
    ready = c->Take<ExpertHandle>(e.experts + 1);
    late = c->Take<ExpertHandle>(e.experts + 1);
    copies = c->Take<RecordCopy>(e.experts);
    num_copies = c->Take<int32_t>(1);
    late_tiles = CarveTiles(e, c);
    predictions.curves = c->Take<HitCounts>(int64_t{kHitBins} * (model.num_layers() + 1));
    predictions.bins = c->Take<uint8_t>(model.total_experts() * kFewTokens);
    predictions.wanted = c->Take<uint32_t>(model.total_experts());
    predictions.calls = c->Take<PredictedCall>(model.num_layers());
    if (e.served.cpu()) cpu.Carve(e, c);
  }
};

struct Workspace {
  uint8_t* x[kOperands];  // packed rows; null: not in use
  uint8_t* prompt_x;      // rounded rows; null: not in use
  uint8_t* h;
  float* wide_h;
  float* prompt_h_columns;  // see PromptGemmArgs; null: not in use
  float* out;               // by slot; bf16 in calls with products of family P
  float* logits;            // [up to kChoosingTokens, experts]
  float* scores;            // [tokens, experts]
  float* next_scores;
  int32_t* token_ids;  // [tokens]; null: no layer is routed by them
  int32_t* ids;        // [pairs]
  float* weights;
  float* ones;  // [pairs], the weights of sums whose inputs were weighted; null: no such layer
  SlotGroups groups;
  int32_t* shared_slots;
  TileTable table;
  PromptTable prompt;
  RuleBuffers rule;
  ExpertHandle* handles;  // the residency table
  SelectionTally* tally;  // of captured calls: one per row of the residency table
  ServedBuffers served;

  void Carve(const MoeModelSpec& model, const Extent& e, Carver* c) {
    const int64_t handle_count = HandleCount(model);
    for (int i = 0; i < kOperands; ++i) {
      x[i] = e.use.x[i] ? c->Take<uint8_t>(e.x_rows * e.x_stride()) : nullptr;
    }
    prompt_x = e.prompts() ? c->Take<uint8_t>(e.x_rows * e.prompt_x_stride()) : nullptr;
    h = c->Take<uint8_t>(e.h_bytes());
    wide_h = e.use.wide_h ? c->Take<float>(e.wide_h_bytes() / 4) : nullptr;
    const int64_t h_columns = e.prompt_h_columns();
    prompt_h_columns = h_columns > 0 ? c->Take<float>(e.prompt_h_rows * h_columns) : nullptr;
    out = c->Take<float>(e.slots * e.hidden);
    logits = c->Take<float>(std::min<int64_t>(e.tokens, kChoosingTokens) * e.experts);
    scores = c->Take<float>(e.tokens * e.experts);
    next_scores = c->Take<float>(e.tokens * e.experts);
    token_ids = e.by_token ? c->Take<int32_t>(e.tokens) : nullptr;
    ids = c->Take<int32_t>(e.pairs);
    weights = c->Take<float>(e.pairs);
    ones = e.x_rows > e.tokens ? c->Take<float>(e.pairs) : nullptr;
    groups.sorted = c->Take<int32_t>(e.pairs);
    groups.firsts = c->Take<int32_t>(e.experts);
    groups.counts = c->Take<int32_t>(e.experts);
    groups.chunks = c->Take<int32_t>(GroupChunks(e.pairs) * e.experts);
    shared_slots = c->Take<int32_t>(e.tokens);
    table = CarveTiles(e, c);
    if (e.prompts()) {
      prompt.units = c->Take<PromptUnit>(e.prompt_units);
      prompt.tiles[0] = c->Take<uint32_t>(e.prompt_units * (e.intermediate / 64));
      prompt.tiles[1] = c->Take<uint32_t>(e.prompt_units * ((e.hidden + 127) / 128));
      prompt.begins = c->Take<int32_t[kPromptPackings + 1]>(2);
      prompt.tickets = c->Take<int32_t[kPromptPackings]>(2);
      prompt.unit_count = c->Take<int32_t>(1);
    }
    rule.Carve(e, c);
    handles = c->Take<ExpertHandle>(handle_count);
    tally = c->Take<SelectionTally>(handle_count);
    served.Carve(model, e, c);
  }
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_WORKSPACE_H_
