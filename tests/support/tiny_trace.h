// The header of tests/data/traces: the recorded routing of the trained model.
#ifndef MOERT_TESTS_SUPPORT_TINY_TRACE_H_
#define MOERT_TESTS_SUPPORT_TINY_TRACE_H_

#include <cstdint>
#include <vector>

#include "moert/model.h"
#include "moert/tools/trace.h"

namespace moert::test {

constexpr int kTinyTraceLayers = 8, kTinyTraceExperts = 32;

inline TraceHeader TinyTraceHeader() {
  TraceHeader header;
  for (int l = 0; l < kTinyTraceLayers; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = kTinyTraceExperts;
    layer.hidden = 128;
    layer.intermediate = 64;
    layer.shared_intermediate = 128;
    layer.shared_gate = true;
    layer.routing.top_k = 4;
    header.model.layers.push_back(layer);
  }
  const std::vector<int64_t> bytes(kTinyTraceExperts, 49152);
  header.versions.push_back({"bf16", std::vector(kTinyTraceLayers, bytes)});
  return header;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_TINY_TRACE_H_
