#include "backend/cuda/cuda_executor.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "backend/cuda/cuda_api.h"
#include "backend/cuda/device_format.h"
#include "base/aligned_array.h"
#include "base/checked_math.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/rows.h"

namespace moert::cuda {
namespace {

using DeviceHandle = ::moert::cuda::ExpertHandle;

/// The widest of each dimension over a model's layers.
struct Extent {
  int64_t tokens = 0, pairs = 0, slots = 0, experts = 0, hidden = 0, intermediate = 0, tiles = 0;

  Extent(const MoeModelSpec& model, int64_t max_tokens) : tokens(max_tokens) {
    for (const MoeLayerSpec& l : model.layers) {
      pairs = std::max(pairs, max_tokens * l.routing.top_k);
      experts = std::max<int64_t>(experts, l.num_experts);
      hidden = std::max(hidden, RoundUp(l.hidden, 64));
      intermediate =
          std::max({intermediate, RoundUp(l.intermediate, 64), RoundUp(l.shared_intermediate, 64)});
      tiles = std::max(tiles, MaxTiles(max_tokens, l.routing.top_k, l.num_experts));
    }
    slots = pairs + tokens;
  }
};

/// The executor's buffers in device memory.
struct Workspace {
  uint16_t* x;  // packed rows
  uint16_t* h;
  float* out;     // by slot
  float* scores;  // [tokens, experts]
  float* next_scores;
  int32_t* ids;  // [pairs]
  float* weights;
  int32_t* next_ids;
  float* next_weights;
  int32_t* lists;  // [experts, pairs]
  int32_t* counts;
  int32_t* shared_slots;
  TileTable table;
  DeviceHandle* handles;  // all layers, each with its shared expert last

  void Carve(const Extent& e, int64_t handle_count, Carver* c) {
    x = c->Take<uint16_t>(e.tokens * e.hidden);
    h = c->Take<uint16_t>(e.slots * e.intermediate);
    out = c->Take<float>(e.slots * e.hidden);
    scores = c->Take<float>(e.tokens * e.experts);
    next_scores = c->Take<float>(e.tokens * e.experts);
    ids = c->Take<int32_t>(e.pairs);
    weights = c->Take<float>(e.pairs);
    next_ids = c->Take<int32_t>(e.pairs);
    next_weights = c->Take<float>(e.pairs);
    lists = c->Take<int32_t>(e.experts * e.pairs);
    counts = c->Take<int32_t>(e.experts);
    shared_slots = c->Take<int32_t>(e.tokens);
    table.tiles = c->Take<Tile>(e.tiles);
    for (int p = 0; p < 2; ++p) {
      table.cost[p] = c->Take<int64_t>(e.tiles);
      table.starts[p] = c->Take<Position>(kMaxCtas + 1);
    }
    handles = c->Take<DeviceHandle>(handle_count);
  }
};

int64_t HandleCount(const MoeModelSpec& model) {
  return model.total_experts() + model.num_layers();
}

/// What a layer always has on the device.
struct LayerOnDevice {
  const float* gate = nullptr;
  const float* selection_bias = nullptr;
  const float* shared_gate = nullptr;
  bool shared = false;
  int64_t first_handle = 0;
};

/// A routing on its way to the host: ids, weights, scores in pinned memory.
struct PendingRouting {
  PolicyContext context;
  int64_t tokens = 0;
  std::byte* at = nullptr;
  cudaEvent_t arrived = nullptr;
};

class CudaExecutor final : public DeviceExecutor {
 public:
  CudaExecutor(const ExecutorParts& parts, int device, ComputeFence* fence)
      : parts_(parts),
        model_(parts.source->model()),
        device_(device),
        fence_(fence),
        extent_(model_, parts.max_tokens) {}

  ~CudaExecutor() override {
    DeviceScope scope(device_);
    cudaDeviceSynchronize();  // kernels of the last calls use what goes now
    if (routed_ != nullptr) cudaEventDestroy(routed_);
    for (PendingRouting& p : ring_) {
      if (p.arrived != nullptr) cudaEventDestroy(p.arrived);
    }
  }

  absl::Status Init();

  absl::Status Route(const DeviceCall& call, bool on_host, bool next_gate, HostRoute host_route,
                     RoutingResult* routing) override;
  absl::Status Multiply(const DeviceCall& call, const RoutingResult& routing,
                        absl::Span<const WaveExpert> wave, bool first) override;
  absl::Status Combine(const DeviceCall& call, const RoutingResult& routing) override;

  bool CanRunResident(int /*layer*/) const override { return true; }
  absl::Status RunResident(const DeviceCall& call, const PolicyContext& context,
                           const ExpertStore& store) override;
  bool Capturing(void* stream) const override;
  bool TakeRouting(PolicyContext* context, RoutingResult* routing) override;
  absl::Status OpenStep(const ExpertStore& store, int64_t epoch, void* stream) override;
  absl::Status CloseStep(void* stream) override;

 private:
  const MoeLayerSpec& Spec(const DeviceCall& call) const { return model_.layers[call.layer]; }
  static DeviceRows Rows(const DeviceCall& call) {
    return {call.hidden.data, static_cast<int32_t>(call.hidden.dtype),
            static_cast<int32_t>(call.hidden.rows), static_cast<int32_t>(call.hidden.cols),
            call.hidden.row_stride};
  }
  static cudaStream_t Stream(const DeviceCall& call) {
    return static_cast<cudaStream_t>(call.stream);
  }
  DeviceRouting RoutingOf(int layer) const {
    const RoutingSpec& r = model_.layers[layer].routing;
    DeviceRouting d;
    d.kind = static_cast<int32_t>(r.kind);
    d.num_experts = model_.layers[layer].num_experts;
    d.top_k = r.top_k;
    d.renormalize = r.renormalize ? 1 : 0;
    d.scaling = r.scaling;
    d.num_groups = r.num_groups;
    d.top_groups = r.top_groups;
    d.sparsemixer_threshold = 2 * r.sparsemixer_eps;
    d.selection_bias = layers_[layer].selection_bias;
    return d;
  }

  /// Calls of several streams share the buffers: they follow one another.
  absl::Status Enter(cudaStream_t stream);
  absl::Status RouteOnDevice(const DeviceCall& call, bool next_gate);
  absl::Status GroupAndPack(const DeviceCall& call);
  absl::Status Products(const DeviceCall& call, const ExpertSet& wave);
  absl::Status WeightedSum(const DeviceCall& call);
  absl::Status WaitForRouting(cudaStream_t stream);
  absl::Status UpdateHandles(const DeviceCall& call, absl::Span<const WaveExpert> wave);
  absl::Status SyncLayer(const ExpertStore& store, int layer, int64_t epoch, cudaStream_t stream);
  absl::Status Set(int64_t index, const moert::ExpertHandle& handle, TableUpdates* updates,
                   cudaStream_t stream);
  absl::Status Flush(TableUpdates* updates, cudaStream_t stream);
  int64_t RoutingBytes() const {
    return RoundUp(extent_.pairs * 8 + extent_.tokens * extent_.experts * 4, 256) + 3 * 256;
  }
  /// Fills all but the scores of the next layer from ids, weights and scores.
  void FillRouting(int layer, int64_t tokens, const int32_t* ids, const float* weights,
                   const float* scores, RoutingResult* routing) const;

  const ExecutorParts parts_;
  const MoeModelSpec& model_;
  const int device_;
  ComputeFence* const fence_;
  const Extent extent_;
  int ctas_ = 0;

  Buffer memory_, constants_memory_, formats_memory_, mirror_, ring_memory_;
  Workspace w_{};
  std::vector<LayerOnDevice> layers_;
  std::unordered_map<const RecordLayout*, int64_t> format_of_;
  std::vector<moert::ExpertHandle> shadow_;  // what the device's table holds or will
  cudaEvent_t routed_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  bool any_stream_ = false;
  bool captured_ = false;  // some call was captured: its replays read the table
  AlignedArray<float> host_rows_;

  std::vector<PendingRouting> ring_;
  size_t ring_first_ = 0, ring_count_ = 0;
};

absl::Status CudaExecutor::Init() {
  DeviceScope scope(device_);
  ctas_ = GroupGemmCtas();
  if (ctas_ == 0) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::UnimplementedError("the kernels of this build do not run on this device");
  }
  const int64_t handles = HandleCount(model_);
  Carver count;
  w_.Carve(extent_, handles, &count);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  w_.Carve(extent_, handles, &carver);

  // Gates and shared experts.
  const auto place = [&](Carver* c, bool copy) -> absl::Status {
    layers_.clear();
    int64_t handle = 0;
    for (int l = 0; l < model_.num_layers(); ++l) {
      const LayerConstants& host = (*parts_.constants)[l];
      LayerOnDevice d;
      d.first_handle = handle;
      handle += model_.layers[l].num_experts + 1;
      const auto bring = [&](const void* from, size_t bytes) -> absl::StatusOr<std::byte*> {
        std::byte* at = c->Take<std::byte>(static_cast<int64_t>(bytes));
        if (copy) MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
        return at;
      };
      MOERT_ASSIGN_OR_RETURN(std::byte * gate, bring(host.gate.data(), host.gate.size() * 4));
      d.gate = reinterpret_cast<const float*>(gate);
      if (!host.selection_bias.empty()) {
        MOERT_ASSIGN_OR_RETURN(std::byte * bias,
                               bring(host.selection_bias.data(), host.selection_bias.size() * 4));
        d.selection_bias = reinterpret_cast<const float*>(bias);
      }
      if (!host.shared_gate.empty()) {
        MOERT_ASSIGN_OR_RETURN(std::byte * shared_gate,
                               bring(host.shared_gate.data(), host.shared_gate.size() * 4));
        d.shared_gate = reinterpret_cast<const float*>(shared_gate);
      }
      if (parts_.shared_records[l] != nullptr) {
        d.shared = true;
        MOERT_ASSIGN_OR_RETURN(
            std::byte * record,
            bring(parts_.shared_records[l], static_cast<size_t>(host.shared_layout.bytes)));
        if (copy) shadow_[d.first_handle + model_.layers[l].num_experts].record = record;
      }
      layers_.push_back(d);
    }
    return absl::OkStatus();
  };
  shadow_.resize(handles);
  Carver constant_count;
  MOERT_RETURN_IF_ERROR(place(&constant_count, false));
  MOERT_ASSIGN_OR_RETURN(constants_memory_, Buffer::Device(constant_count.used()));
  Carver constants(constants_memory_.data());
  MOERT_RETURN_IF_ERROR(place(&constants, true));

  // Formats: few, shared by many records.
  std::vector<DeviceFormat> formats;
  const auto add = [&](const RecordLayout& layout) -> absl::Status {
    if (format_of_.count(&layout) != 0) return absl::OkStatus();
    MOERT_ASSIGN_OR_RETURN(const DeviceFormat format, MakeDeviceFormat(layout));
    size_t i = 0;
    while (i < formats.size() && std::memcmp(&formats[i], &format, sizeof(format)) != 0) ++i;
    if (i == formats.size()) formats.push_back(format);
    format_of_[&layout] = static_cast<int64_t>(i);
    return absl::OkStatus();
  };
  for (int l = 0; l < model_.num_layers(); ++l) {
    for (int e = 0; e < model_.layers[l].num_experts; ++e) {
      for (const int version : parts_.versions) {
        MOERT_RETURN_IF_ERROR(add(parts_.source->layout(l, e, version)));
      }
    }
    if (layers_[l].shared) MOERT_RETURN_IF_ERROR(add((*parts_.constants)[l].shared_layout));
  }
  const auto format_bytes = static_cast<int64_t>(formats.size() * sizeof(DeviceFormat));
  MOERT_ASSIGN_OR_RETURN(formats_memory_, Buffer::Device(format_bytes));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy(formats_memory_.data(), formats.data(),
                                        static_cast<size_t>(format_bytes), cudaMemcpyHostToDevice));

  std::vector<DeviceHandle> table(handles);
  for (int l = 0; l < model_.num_layers(); ++l) {
    if (!layers_[l].shared) continue;
    const int64_t at = layers_[l].first_handle + model_.layers[l].num_experts;
    table[at] = {reinterpret_cast<const uint8_t*>(shadow_[at].record),
                 format_of_[&(*parts_.constants)[l].shared_layout]};
  }
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy(w_.handles, table.data(), table.size() * sizeof(table[0]),
                                        cudaMemcpyHostToDevice));

  // Host mirrors of routings: one that Route waits for, and a ring of late ones.
  constexpr int kRing = 64;
  MOERT_ASSIGN_OR_RETURN(mirror_, Buffer::Pinned(2 * RoutingBytes()));
  MOERT_ASSIGN_OR_RETURN(ring_memory_, Buffer::Pinned(kRing * RoutingBytes()));
  ring_.resize(kRing);
  for (int i = 0; i < kRing; ++i) {
    ring_[i].at = ring_memory_.data() + i * RoutingBytes();
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&ring_[i].arrived, cudaEventDisableTiming));
  }
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&routed_, cudaEventDisableTiming));
  MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  return absl::OkStatus();
}

absl::Status CudaExecutor::Enter(cudaStream_t stream) {
  if (any_stream_ && stream != last_stream_) {
    MOERT_RETURN_IF_ERROR(fence_->Wait(fence_->Now(), stream));
  }
  last_stream_ = stream;
  any_stream_ = true;
  return absl::OkStatus();
}

absl::Status CudaExecutor::RouteOnDevice(const DeviceCall& call, bool next_gate) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int>(call.hidden.rows);
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGateLogits(Rows(call), layers_[call.layer].gate, spec.num_experts, w_.scores, stream));
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchTopK(RoutingOf(call.layer), tokens, w_.scores, w_.ids, w_.weights, stream));
  if (!next_gate) return absl::OkStatus();
  const int next = (call.layer + 1) % model_.num_layers();
  const MoeLayerSpec& next_spec = model_.layers[next];
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGateLogits(Rows(call), layers_[next].gate, next_spec.num_experts,
                                              w_.next_scores, stream));
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchTopK(RoutingOf(next), tokens, w_.next_scores, w_.next_ids, w_.next_weights, stream));
  return absl::OkStatus();
}

absl::Status CudaExecutor::GroupAndPack(const DeviceCall& call) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int>(call.hidden.rows);
  const int pairs = tokens * spec.routing.top_k;
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGroup(w_.ids, pairs, spec.num_experts, w_.lists, w_.counts, stream));
  if (layers_[call.layer].shared) {
    MOERT_CUDA_RETURN_IF_ERROR(LaunchIota(w_.shared_slots, pairs, tokens, stream));
  }
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPackRows(Rows(call), w_.x, extent_.hidden, stream));
  return absl::OkStatus();
}

void CudaExecutor::FillRouting(int layer, int64_t tokens, const int32_t* ids, const float* weights,
                               const float* scores, RoutingResult* routing) const {
  const MoeLayerSpec& spec = model_.layers[layer];
  const int64_t pairs = tokens * spec.routing.top_k;
  routing->tokens = tokens;
  routing->top_k = spec.routing.top_k;
  routing->num_experts = spec.num_experts;
  routing->ids.assign(ids, ids + pairs);
  routing->weights.assign(weights, weights + pairs);
  routing->scores.assign(scores, scores + tokens * spec.num_experts);
  routing->next_scores.clear();
  routing->substituted = 0;
  routing->mass = routing->mass_substituted = 0;
  for (const float w : routing->weights) routing->mass += w;
  Router::Group(routing);
}

absl::Status CudaExecutor::WaitForRouting(cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(routed_, stream));
  ++parts_.stats->host_syncs;
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(routed_));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Route(const DeviceCall& call, bool on_host, bool next_gate,
                                 HostRoute host_route, RoutingResult* routing) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  MOERT_RETURN_IF_ERROR(Enter(stream));
  const MoeLayerSpec& spec = Spec(call);
  const int64_t tokens = call.hidden.rows;
  const int64_t pairs = tokens * spec.routing.top_k;
  if (on_host) {
    const int64_t row_bytes = spec.hidden * DTypeBytes(call.hidden.dtype);
    std::vector<std::byte> rows(static_cast<size_t>(tokens * row_bytes));
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(
        rows.data(), static_cast<size_t>(row_bytes), call.hidden.data,
        static_cast<size_t>(call.hidden.row_stride * DTypeBytes(call.hidden.dtype)),
        static_cast<size_t>(row_bytes), static_cast<size_t>(tokens), cudaMemcpyDeviceToHost,
        stream));
    MOERT_RETURN_IF_ERROR(WaitForRouting(stream));
    if (host_rows_.size() < tokens * spec.hidden) {
      host_rows_ = AlignedArray<float>(parts_.max_tokens * extent_.hidden);
    }
    WidenRows({rows.data(), call.hidden.dtype, tokens, spec.hidden, spec.hidden},
              host_rows_.data());
    MOERT_RETURN_IF_ERROR(host_route(host_rows_.data(), routing));
    // Small and pageable: the copies have left the vectors when the calls return.
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(w_.ids, routing->ids.data(),
                                               static_cast<size_t>(pairs) * 4,
                                               cudaMemcpyHostToDevice, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(w_.weights, routing->weights.data(),
                                               static_cast<size_t>(pairs) * 4,
                                               cudaMemcpyHostToDevice, stream));
    return GroupAndPack(call);
  }
  MOERT_RETURN_IF_ERROR(RouteOnDevice(call, next_gate));
  Carver host(mirror_.data());
  auto* ids = host.Take<int32_t>(extent_.pairs);
  auto* weights = host.Take<float>(extent_.pairs);
  auto* scores = host.Take<float>(extent_.tokens * extent_.experts);
  auto* next_scores = reinterpret_cast<float*>(mirror_.data() + RoutingBytes());
  const auto bring = [&](void* to, const void* from, int64_t count) {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(count) * 4, cudaMemcpyDeviceToHost,
                           stream);
  };
  MOERT_CUDA_RETURN_IF_ERROR(bring(ids, w_.ids, pairs));
  MOERT_CUDA_RETURN_IF_ERROR(bring(weights, w_.weights, pairs));
  MOERT_CUDA_RETURN_IF_ERROR(bring(scores, w_.scores, tokens * spec.num_experts));
  const int next_experts = model_.layers[(call.layer + 1) % model_.num_layers()].num_experts;
  if (next_gate) {
    MOERT_CUDA_RETURN_IF_ERROR(bring(next_scores, w_.next_scores, tokens * next_experts));
  }
  const int error = static_cast<int>(cudaEventRecord(routed_, stream));
  if (error != 0) return ToStatus(error, "recording the routing");
  MOERT_RETURN_IF_ERROR(GroupAndPack(call));  // beside the host's wait
  ++parts_.stats->host_syncs;
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(routed_));
  FillRouting(call.layer, tokens, ids, weights, scores, routing);
  if (next_gate) routing->next_scores.assign(next_scores, next_scores + tokens * next_experts);
  return absl::OkStatus();
}

absl::Status CudaExecutor::Flush(TableUpdates* updates, cudaStream_t stream) {
  if (updates->count == 0) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(LaunchUpdateTable(w_.handles, *updates, stream));
  updates->count = 0;
  return absl::OkStatus();
}

absl::Status CudaExecutor::Set(int64_t index, const moert::ExpertHandle& handle,
                               TableUpdates* updates, cudaStream_t stream) {
  moert::ExpertHandle& shadow = shadow_[index];
  if (shadow.record == handle.record && shadow.layout == handle.layout) return absl::OkStatus();
  shadow = handle;
  updates->index[updates->count] = static_cast<int32_t>(index);
  updates->handle[updates->count] = {reinterpret_cast<const uint8_t*>(handle.record),
                                     handle.layout == nullptr ? 0 : format_of_.at(handle.layout)};
  if (++updates->count < TableUpdates::kMax) return absl::OkStatus();
  return Flush(updates, stream);
}

absl::Status CudaExecutor::SyncLayer(const ExpertStore& store, int layer, int64_t epoch,
                                     cudaStream_t stream) {
  TableUpdates updates;
  for (int e = 0; e < model_.layers[layer].num_experts; ++e) {
    MOERT_RETURN_IF_ERROR(
        Set(layers_[layer].first_handle + e, store.Resolve({layer, e}, epoch), &updates, stream));
  }
  return Flush(&updates, stream);
}

absl::Status CudaExecutor::Products(const DeviceCall& call, const ExpertSet& wave) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const LayerOnDevice& layer = layers_[call.layer];
  const auto tokens = static_cast<int32_t>(call.hidden.rows);
  MakeTilesArgs tiles;
  tiles.table = w_.table;
  tiles.formats = reinterpret_cast<const DeviceFormat*>(formats_memory_.data());
  tiles.handles = w_.handles + layer.first_handle;
  tiles.counts = w_.counts;
  tiles.lists = w_.lists;
  tiles.shared_slots = w_.shared_slots;
  tiles.experts = spec.num_experts;
  tiles.pairs = tokens * spec.routing.top_k;
  tiles.tokens = tokens;
  tiles.ctas = ctas_;
  tiles.wave = wave;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchMakeTiles(tiles, stream));
  GroupGemmArgs gemm;
  gemm.table = w_.table;
  gemm.x = w_.x;
  gemm.h = w_.h;
  gemm.out = w_.out;
  gemm.x_stride = extent_.hidden;
  gemm.h_stride = extent_.intermediate;
  gemm.out_stride = extent_.hidden;
  gemm.pairs = tiles.pairs;
  gemm.top_k = spec.routing.top_k;
  gemm.hidden = static_cast<int32_t>(spec.hidden);
  gemm.activation = static_cast<int32_t>(spec.activation);
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGateUp(gemm, ctas_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchDown(gemm, ctas_, stream));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Multiply(const DeviceCall& call, const RoutingResult& routing,
                                    absl::Span<const WaveExpert> wave, bool first) {
  const bool shared = first && layers_[call.layer].shared;
  if (wave.empty() && !shared) return absl::OkStatus();
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  TableUpdates updates;
  ExpertSet set;
  for (const WaveExpert& w : wave) {
    MOERT_RETURN_IF_ERROR(
        Set(layers_[call.layer].first_handle + w.expert, w.handle, &updates, stream));
    set.Add(w.expert);
  }
  MOERT_RETURN_IF_ERROR(Flush(&updates, stream));
  if (shared) set.Add(Spec(call).num_experts);
  MOERT_RETURN_IF_ERROR(Products(call, set));
  return fence_->Pass(stream);
}

absl::Status CudaExecutor::WeightedSum(const DeviceCall& call) {
  const LayerOnDevice& layer = layers_[call.layer];
  CombineArgs combine;
  combine.x = Rows(call);
  combine.slots = w_.out;
  combine.slot_stride = extent_.hidden;
  combine.weights = w_.weights;
  combine.shared_gate = layer.shared_gate;
  combine.shared = layer.shared;
  combine.top_k = Spec(call).routing.top_k;
  combine.out = call.out.data;
  combine.out_dtype = static_cast<int32_t>(call.out.dtype);
  combine.out_stride = call.out.row_stride;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchCombine(combine, Stream(call)));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Combine(const DeviceCall& call, const RoutingResult& routing) {
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(WeightedSum(call));
  return fence_->Pass(Stream(call));
}

absl::Status CudaExecutor::RunResident(const DeviceCall& call, const PolicyContext& context,
                                       const ExpertStore& store) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  const bool capturing = Capturing(call.stream);
  if (capturing) {
    // The handles are read at replay, from the table as OpenStep keeps it.
    captured_ = true;
    parts_.stats->graph_captured = true;
  } else {
    MOERT_RETURN_IF_ERROR(Enter(stream));
    MOERT_RETURN_IF_ERROR(SyncLayer(store, call.layer, call.epoch, stream));
  }
  MOERT_RETURN_IF_ERROR(RouteOnDevice(call, false));
  if (!capturing && ring_count_ < ring_.size()) {
    const MoeLayerSpec& spec = Spec(call);
    PendingRouting& p = ring_[(ring_first_ + ring_count_) % ring_.size()];
    p.context = context;
    p.tokens = call.hidden.rows;
    const int64_t pairs = p.tokens * spec.routing.top_k;
    Carver host(p.at);
    const auto bring = [&](void* to, const void* from, int64_t count) {
      return cudaMemcpyAsync(to, from, static_cast<size_t>(count) * 4, cudaMemcpyDeviceToHost,
                             stream);
    };
    MOERT_CUDA_RETURN_IF_ERROR(bring(host.Take<int32_t>(pairs), w_.ids, pairs));
    MOERT_CUDA_RETURN_IF_ERROR(bring(host.Take<float>(pairs), w_.weights, pairs));
    MOERT_CUDA_RETURN_IF_ERROR(bring(host.Take<float>(p.tokens * spec.num_experts), w_.scores,
                                     p.tokens * spec.num_experts));
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(p.arrived, stream));
    ++ring_count_;
  }
  MOERT_RETURN_IF_ERROR(GroupAndPack(call));
  ExpertSet all;
  for (int e = 0; e < Spec(call).num_experts; ++e) all.Add(e);
  if (layers_[call.layer].shared) all.Add(Spec(call).num_experts);
  MOERT_RETURN_IF_ERROR(Products(call, all));
  MOERT_RETURN_IF_ERROR(WeightedSum(call));
  return capturing ? absl::OkStatus() : fence_->Pass(stream);
}

bool CudaExecutor::Capturing(void* stream) const {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture) == cudaSuccess &&
         capture != cudaStreamCaptureStatusNone;
}

bool CudaExecutor::TakeRouting(PolicyContext* context, RoutingResult* routing) {
  if (ring_count_ == 0) return false;
  DeviceScope scope(device_);
  PendingRouting& p = ring_[ring_first_];
  if (cudaEventQuery(p.arrived) != cudaSuccess) return false;
  const MoeLayerSpec& spec = model_.layers[p.context.layer];
  const int64_t pairs = p.tokens * spec.routing.top_k;
  Carver host(p.at);
  const auto* ids = host.Take<int32_t>(pairs);
  const auto* weights = host.Take<float>(pairs);
  FillRouting(p.context.layer, p.tokens, ids, weights,
              host.Take<float>(p.tokens * spec.num_experts), routing);
  *context = p.context;
  ring_first_ = (ring_first_ + 1) % ring_.size();
  --ring_count_;
  return true;
}

absl::Status CudaExecutor::OpenStep(const ExpertStore& store, int64_t epoch, void* stream) {
  if (!captured_) return absl::OkStatus();
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(Enter(static_cast<cudaStream_t>(stream)));
  for (int l = 0; l < model_.num_layers(); ++l) {
    MOERT_RETURN_IF_ERROR(SyncLayer(store, l, epoch, static_cast<cudaStream_t>(stream)));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::CloseStep(void* stream) {
  DeviceScope scope(device_);
  return fence_->Pass(static_cast<cudaStream_t>(stream));
}

}  // namespace

int64_t ExecutorBytes(const MoeModelSpec& model, int64_t max_tokens) {
  Carver count;
  Workspace w{};
  w.Carve(Extent(model, max_tokens), HandleCount(model), &count);
  return count.used();
}

absl::StatusOr<std::unique_ptr<DeviceExecutor>> MakeCudaExecutor(const ExecutorParts& parts,
                                                                 int device, ComputeFence* fence) {
  auto executor = std::make_unique<CudaExecutor>(parts, device, fence);
  MOERT_RETURN_IF_ERROR(executor->Init());
  return executor;
}

}  // namespace moert::cuda
