// Records of the next layer that the device prefetches while a layer runs: how they are predicted,
// copied, and settled when the next layer asks for its experts.
//
// While layer l runs, one CTA applies the next layer's gate to the same input and lists the records
// to prefetch (predict_next.cuh), each with the slot it gets and the expert that leaves that slot.
// Where the decision about layer l also routes it, that CTA is part of the decision's launch. After
// the layer's own copies, copying CTAs work through the list in order. When the next layer is
// routed, its decision settles the list (settle_prefetches.cuh). A record that has not begun is
// dropped, and its victim stays. One that has begun and is not wanted stops within a few pieces.
// One that has begun and is wanted goes on, and its products wait for it.
//
// If nothing is predicted, the list may have a fill: the absent expert that is worth most, for an
// empty slot or in place of an expert that is clearly worth less. Fills bring in experts whose
// misses were answered low, or by the CPU, since no call copies these. So fills are sought only
// after a call with such misses (ServedLayer::elsewhere), and until none is found.
//
// The table changes only when the list is settled. A list that no call settles, such as that of a
// graph of one layer, is settled later, by the next prediction or by the host.
#ifndef MOERT_KERNELS_CUDA_CACHE_SERVED_PREFETCH_H_
#define MOERT_KERNELS_CUDA_CACHE_SERVED_PREFETCH_H_

#include <cstdint>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/route/route.h"
#include "rules/hit_curve.h"

struct CUstream_st;
struct CUgraph_st;
struct CUgraphNode_st;

namespace moert::cuda {

/// The predictions of all layers and the data that they learn from, in device memory, layer by
/// layer.
struct PredictionMemory {
  HitCounts* curves = nullptr;     // [layers + 1, kHitBins], those of all layers last
  uint8_t* bins = nullptr;         // [experts of all, kFewTokens]; kHitBins: was present
  uint32_t* wanted = nullptr;      // [experts of all]: tokens of the call that was predicted, bits
  PredictedCall* calls = nullptr;  // [layers]
};

/// All pointers are device memory.
struct PredictArgs {
  DeviceRouting routing;    // of the layer that is predicted
  int32_t tokens = 0;       // at most kFewTokens
  float* scores = nullptr;  // [tokens, experts] its logits, which become scores
  ServedLayer* layer = nullptr;  // the rest as ServeMissesArgs, of that layer
  ServedExpert* rows = nullptr;
  const ExpertUse* use = nullptr;  // or null
  int32_t window = 0;
  const double* sums = nullptr;
  const ServedRecord* records = nullptr;
  uint8_t* const* slots = nullptr;
  ServedTally* tally = nullptr;
  LayerPrefetch* prefetch = nullptr;
  HitCounts* curve = nullptr;  // [kHitBins], of the layer
  HitCounts* all = nullptr;    // of all layers
  uint8_t* bins = nullptr;     // [experts, kFewTokens]
  uint32_t* wanted = nullptr;  // [experts]
  PredictedCall* call = nullptr;
  /// Records less likely wanted than this are not prefetched.
  float least = 0.2F;
  int32_t fills = 0;  // whether lists may have a fill
};
/// Decides what is prefetched for a layer of up to kFewExperts experts. Returns 0 or a cudaError_t.
int LaunchPredictRecords(const PredictArgs& args, CUstream_st* stream);

/// Copies the records of a list, by kCopyCtas CTAs.
int LaunchCopyPrefetched(LayerPrefetch* prefetch, CUstream_st* stream);
/// The same as a node of a graph that is being captured, which no stream waits for.
int AddCopyPrefetched(CUgraph_st* graph, CUgraphNode_st* const* behind, size_t count,
                      LayerPrefetch* prefetch, CUgraphNode_st** node);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SERVED_PREFETCH_H_
