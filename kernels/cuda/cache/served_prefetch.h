// Records of the next layer, brought by the device while a layer runs: what is predicted, how far
// it has come when the layer asks, and what becomes of it.
//
// While layer l runs, one CTA goes by the next layer's gate, applied to the same input. It writes a
// list of records to bring (predict_next.cuh), each
// with the slot it gets and the expert that leaves it. Where the decision about layer l also routes
// it, that CTA is of the decision's launch. Behind the layer's own copies, copying CTAs take the
// list in its order. When the next layer is routed, its decision settles the list
// (serve_misses.cu): what has not begun is dropped, and whom it would have replaced is still there;
// what has begun and nobody wants stops within a few pieces; what has begun and is wanted goes on,
// and its products wait for it.
//
// Where nothing is listed so, the list may have a fill: the absent expert that is worth most, for a
// slot of nobody or in place of one that is clearly worth less. It is how misses that were answered
// low, or by the CPU, come in: they are brought by no call. So nobody is looked for until a call
// has had such misses (ServedLayer::elsewhere), and then until a look finds nobody.
//
// The table changes when the list is settled, never before. So a list that nobody settles, as that
// of a graph of one layer alone, is settled later, by the next prediction or by the host.
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

/// Where layers' predictions lie and what they are learned from. Device memory, of all layers one
/// behind the other.
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
  /// Records less likely wanted than this are not brought.
  float least = 0.2F;
  int32_t fills = 0;  // whether lists may have a fill
};
/// Decides what is brought for a layer. For layers of up to kFewExperts experts. Returns 0 or a
/// cudaError_t.
int LaunchPredictRecords(const PredictArgs& args, CUstream_st* stream);

/// Brings the records of a list, by kCopyCtas CTAs.
int LaunchCopyPrefetched(LayerPrefetch* prefetch, CUstream_st* stream);
/// The same as a node of a graph that is being captured, which no stream waits for.
int AddCopyPrefetched(CUgraph_st* graph, CUgraphNode_st* const* behind, size_t count,
                      LayerPrefetch* prefetch, CUgraphNode_st** node);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SERVED_PREFETCH_H_
