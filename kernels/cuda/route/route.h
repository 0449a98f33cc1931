// Routing on the device: gate logits, scores and the k experts of every token, tokens grouped by
// expert, and the tiles of a wave.
//
// A slot is a (token, j) pair, numbered token * top_k + j; slots from tokens * top_k on are one a
// token for the shared expert, which is expert number `num_experts` of a layer.
#ifndef MOERT_KERNELS_CUDA_ROUTE_ROUTE_H_
#define MOERT_KERNELS_CUDA_ROUTE_ROUTE_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/rows.h"

struct CUstream_st;

namespace moert::cuda {

constexpr int kMaxExperts = 1024;
/// Experts of a layer up to which few tokens are routed by one launch, prompts are family P's
/// (prompt_gemm.h), and the expert-cache rule runs on the device.
constexpr int kFewExperts = 512;
constexpr int kMaxTopK = 32;

/// moert::RoutingKind, without its header and the kind whose experts the host chooses.
enum class DeviceRoutingKind : int32_t {
  kSoftmaxTopK,
  kTopKSoftmax,
  kSigmoidGrouped,
  kSparseMixer,
  kSqrtSoftplusGrouped,
  kTopKSigmoid
};

/// The part of moert::RoutingSpec that the device executes: everything.
struct DeviceRouting {
  DeviceRoutingKind kind = DeviceRoutingKind::kSoftmaxTopK;
  int32_t num_experts = 0;
  int32_t top_k = 1;
  int32_t renormalize = 0;
  float scaling = 1;
  int32_t num_groups = 1;  // where experts are chosen by their scores (ByScore)
  int32_t top_groups = 1;
  float sparsemixer_threshold = 0;
  const float* selection_bias = nullptr;  // [num_experts] or null; as num_groups
  const float* logit_bias = nullptr;      // [num_experts] or null
  const float* expert_scales = nullptr;   // [num_experts] or null: multiply weights, given ones too
  // Null, or the experts of a token by its id: [hash_vocab, top_k]. An id outside is taken for the
  // nearest one.
  const int32_t* hash_experts = nullptr;
  const int32_t* token_ids = nullptr;  // [tokens]
  int32_t hash_vocab = 0;
};

/// Calls of up to this many tokens compute their logits by fp32 sums, larger ones by tensor cores,
/// with the same bound on the error.
constexpr int kFewTokens = 32;

/// Memory that must be zero for the launch after a gate's logits.
struct GateZeros {
  int32_t* ready = nullptr;  // [tiles]
  int32_t tiles = 0;
  int32_t* ticket = nullptr;  // [2], or null: nothing is stored
};

/// logits[t, e] = gate[e] . x[t], fp32. gate: [experts, x.cols], constant: it is read before the
/// preceding kernels have ended. packed: if not null, rows are packed as LaunchPackRows does for
/// operand 0.
///
/// A logit is within (12 + cols / 128) 2^-24 of the exact one, in units of the sum of its terms'
/// magnitudes, and depends on its row, its expert and whether there are more than kFewTokens rows.
///
/// second: another gate on the same rows, experts 0: none. It and zeros: up to kFewTokens rows.
struct GateOf {
  const float* gate = nullptr;
  int experts = 0;
  float* logits = nullptr;
};
int LaunchGateLogits(const DeviceRows& x, const float* gate, int experts, float* logits,
                     CUstream_st* stream, uint8_t* packed = nullptr, int64_t packed_stride = 0,
                     const GateOf& second = {}, const GateZeros& zeros = {});

/// Turns logits [tokens, E], without their biases, into scores in place. ids and weights: [tokens,
/// top_k], highest first, of equal scores the lower index first; null: only the scores are wanted.
int LaunchTopK(const DeviceRouting& routing, int tokens, float* logits, int32_t* ids,
               float* weights, CUstream_st* stream);

/// Slots by expert.
struct SlotGroups {
  int32_t* sorted = nullptr;  // [pairs]: the slots of expert 0, ascending, of expert 1, ...
  int32_t* firsts = nullptr;  // [experts]: where they begin
  int32_t* counts = nullptr;  // [experts]
  int32_t* chunks = nullptr;  // [GroupChunks(pairs), experts]: scratch, where there are several
};
MOERT_HOST_DEVICE constexpr int64_t GroupChunks(int64_t pairs) { return (pairs + 1023) / 1024; }
/// `tally`: null, or [experts + 1], the layer's own row last, which the call is added to; then
/// weights: [pairs]. On an H200 65,536 pairs of 128 experts take 6.9 us; cub::DeviceRadixSort, a
/// histogram and a scan 28.7 (gpu.cub_test [rates]).
int LaunchGroup(const int32_t* ids, int pairs, int experts, const SlotGroups& groups,
                CUstream_st* stream, const float* weights = nullptr,
                SelectionTally* tally = nullptr);

/// A set of experts, passed by value with a launch.
struct ExpertSet {
  uint32_t bits[kMaxExperts / 32 + 1] = {};
  MOERT_HOST_DEVICE bool Has(int e) const { return bits[e / 32] >> (e % 32) & 1; }
  void Add(int e) { bits[e / 32] |= 1u << (e % 32); }
};

struct MakeTilesArgs {
  TileTable table;
  const DeviceFormat* formats = nullptr;
  const ExpertHandle* handles =
      nullptr;  // [experts + 1] of the layer; the last is the shared expert
  SlotGroups groups;
  const int32_t* shared_slots = nullptr;  // [tokens]: pairs, pairs + 1, ...
  int32_t experts = 0;
  int32_t tokens = 0;
  int32_t shares = 0;            // GroupGemmShares()
  uint32_t prompt_packings = 0;  // experts that prompt_gemm.h multiplies with these are left out
  ExpertSet wave;                // experts with no tokens may be in it
};

/// Most tiles a wave can have.
MOERT_HOST_DEVICE constexpr int64_t MaxTiles(int64_t tokens, int64_t top_k, int64_t experts) {
  const int64_t pairs = tokens * top_k;
  return pairs / kTileTokens + (pairs < experts ? pairs : experts) + tokens / kTileTokens + 1;
}
int LaunchMakeTiles(const MakeTilesArgs& args, CUstream_st* stream);

/// first[i] = begin + i.
int LaunchIota(int32_t* first, int begin, int count, CUstream_st* stream);

/// Few tokens: everything between their logits, or the given ids, and the products, in one launch.
struct RouteFewArgs {
  DeviceRouting routing;
  int32_t tokens = 0;       // at most kFewTokens
  float* scores = nullptr;  // the rest as LaunchTopK and LaunchGroup
  int32_t* ids = nullptr;
  float* weights = nullptr;
  const int32_t* given_ids = nullptr;  // if not null, no choice: as LaunchAdoptRouting (rows.h)
  const float* given_weights = nullptr;
  int32_t* used_ids = nullptr;
  SlotGroups groups;
  SelectionTally* tally = nullptr;
  int32_t* shared_slots = nullptr;  // null, or gets pairs, pairs + 1, ...
  int32_t makes_tiles = 0;
  MakeTilesArgs tiles;  // if so; with these groups and shared slots
};
int LaunchRouteFew(const RouteFewArgs& args, CUstream_st* stream);

/// Stores handles in the residency table, in stream order.
struct TableUpdates {
  static constexpr int kMax = 64;
  int32_t count = 0;
  int32_t index[kMax];
  ExpertHandle handle[kMax];
};
int LaunchUpdateTable(ExpertHandle* table, const TableUpdates& updates, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_ROUTE_H_
