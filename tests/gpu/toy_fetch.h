// A layer call of a host with a kernel of its own: a fetch of opaque experts, and their product.
#ifndef MOERT_TESTS_GPU_TOY_FETCH_H_
#define MOERT_TESTS_GPU_TOY_FETCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "moert/engine.h"
#include "tests/gpu/toy_kernel.h"

namespace moert::test {

/// The product's other operand.
inline constexpr double kX = 0.5;

inline absl::Status CudaOk(cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : absl::InternalError(cudaGetErrorString(error));
}

inline ToyWeights WeightsOf(const SlotView& view) {
  ToyWeights weights{};
  for (size_t p = 0; p < ToyWeights::kParts; ++p) {
    weights.base[p] = view.parts[p].base;
    weights.stride[p] = view.parts[p].stride;
    weights.bytes[p] = view.parts[p].bytes;
  }
  return weights;
}

/// Pageable: the copy has left the vector when the call returns.
inline absl::Status Upload(int32_t* to, const std::vector<int32_t>& from, cudaStream_t stream) {
  return CudaOk(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(int32_t),
                                cudaMemcpyHostToDevice, stream));
}

/// Device memory of a call, a value for each id.
struct ToyCall {
  int32_t* ids = nullptr;
  int32_t* slots = nullptr;
  double* out = nullptr;
};

/// The default of in_engine below: does nothing around a call of the engine.
inline constexpr auto kPlainly = [](const auto& call) { return call(); };

/// Fetches `ids`, which are in `place`, multiplies and releases: all is enqueued on the stream.
/// in_engine(f) calls f, which is a call of the engine.
template <typename InEngine = decltype(kPlainly)>
absl::Status FetchAndMultiply(Engine* engine, StepId step, int layer, Place place,
                              const std::vector<int32_t>& ids, const ToyCall& at,
                              cudaStream_t stream, SlotView* view,
                              const InEngine& in_engine = kPlainly) {
  std::vector<int32_t> host_slots(ids.size(), -1);
  FetchInput input;
  input.place = place;
  absl::Status status;
  if (place == Place::kHost) {
    input.ids = ids;
    input.slot_ids = absl::MakeSpan(host_slots);
  } else {
    status = Upload(at.ids, ids, stream);
    input.ids = {at.ids, ids.size()};
    input.slot_ids = {at.slots, ids.size()};
  }
  if (status.ok()) status = in_engine([&] { return engine->Fetch(step, layer, input, view); });
  if (status.ok() && place == Place::kHost) status = Upload(at.slots, host_slots, stream);
  if (status.ok()) {
    status = CudaOk(
        LaunchToy(WeightsOf(*view), at.slots, static_cast<int>(ids.size()), kX, at.out, stream));
  }
  status.Update(in_engine([&] { return engine->ReleaseFetched(step, layer); }));
  return status;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_TOY_FETCH_H_
