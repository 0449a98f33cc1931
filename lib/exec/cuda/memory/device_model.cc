#include "exec/cuda/memory/device_model.h"

#include <cstring>

#include "base/status_macros.h"
#include "exec/cpu/fetch_executor.h"
#include "exec/cuda/memory/device_format.h"
#include "exec/cuda/route/device_routing.h"

namespace moert::cuda {

absl::Status DeviceModel::Init(const ExecutorParts& parts, const int32_t* token_ids,
                               ActivationNumerics numerics) {
  Carver count;
  MOERT_RETURN_IF_ERROR(PlaceConstants(parts, token_ids, &count, false));
  MOERT_ASSIGN_OR_RETURN(constants_memory_, Buffer::Device(count.used()));
  Carver carver(constants_memory_.data());
  MOERT_RETURN_IF_ERROR(PlaceConstants(parts, token_ids, &carver, true));
  return PlaceFormats(parts, numerics);
}

absl::Status DeviceModel::PlaceConstants(const ExecutorParts& parts, const int32_t* token_ids,
                                         Carver* carver, bool copy) {
  const MoeModelSpec& model = parts.source->model();
  layers_.clear();
  int64_t handle = 0;
  const auto bring = [&](const void* from, size_t bytes) -> absl::StatusOr<std::byte*> {
    std::byte* at = carver->Take<std::byte>(static_cast<int64_t>(bytes));
    if (copy) MOERT_RETURN_IF_ERROR(CopyNow(at, from, bytes, cudaMemcpyHostToDevice));
    return at;
  };
  // Copies a vector and sets *to to its address; *to stays null if the vector is empty.
  const auto place = [&]<typename T>(const std::vector<T>& from, const T** to) -> absl::Status {
    if (from.empty()) return absl::OkStatus();
    MOERT_ASSIGN_OR_RETURN(std::byte * at, bring(from.data(), from.size() * sizeof(T)));
    *to = reinterpret_cast<const T*>(at);
    return absl::OkStatus();
  };
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& spec = model.layers[l];
    const LayerConstants& host = parts.constants->layer(l);
    LayerOnDevice d;
    d.first_handle = handle;
    handle += spec.num_experts + 1;
    MOERT_RETURN_IF_ERROR(place(host.gate, &d.gate));
    MOERT_RETURN_IF_ERROR(place(host.selection_bias, &d.selection_bias));
    MOERT_RETURN_IF_ERROR(place(host.logit_bias, &d.logit_bias));
    MOERT_RETURN_IF_ERROR(place(host.expert_scales, &d.expert_scales));
    MOERT_RETURN_IF_ERROR(place(host.hash_experts, &d.hash_experts));
    MOERT_RETURN_IF_ERROR(place(host.shared_gate, &d.shared_gate));
    if (const std::byte* shared = parts.constants->shared_record(l); shared != nullptr) {
      MOERT_ASSIGN_OR_RETURN(d.shared_record,
                             bring(shared, static_cast<size_t>(host.shared_layout.bytes)));
    }
    d.routing = MakeDeviceRouting(spec.routing, spec.num_experts, d.selection_bias);
    d.routing.logit_bias = d.logit_bias;
    d.routing.expert_scales = d.expert_scales;
    if (token_ids != nullptr && d.hash_experts != nullptr) {
      d.routing.hash_experts = d.hash_experts;
      d.routing.hash_vocab = static_cast<int32_t>(spec.routing.hash_vocab);
      d.routing.token_ids = token_ids;
    }
    d.activation = MakeDeviceActivation(spec.activation);
    layers_.push_back(d);
  }
  return absl::OkStatus();
}

absl::Status DeviceModel::PlaceFormats(const ExecutorParts& parts, ActivationNumerics numerics) {
  if (IsOpaque(*parts.source)) return absl::OkStatus();  // the library does not multiply them
  const MoeModelSpec& model = parts.source->model();
  std::vector<DeviceFormat> formats;  // few, shared by many records
  const auto add = [&](const RecordLayout& layout) -> absl::Status {
    if (format_of_.count(&layout) != 0) return absl::OkStatus();
    MOERT_ASSIGN_OR_RETURN(const DeviceFormat format, MakeDeviceFormat(layout, numerics));
    size_t i = 0;
    while (i < formats.size() && std::memcmp(&formats[i], &format, sizeof(format)) != 0) ++i;
    if (i == formats.size()) formats.push_back(format);
    format_of_[&layout] = static_cast<int64_t>(i);
    return absl::OkStatus();
  };
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      for (const int version : parts.versions) {
        MOERT_RETURN_IF_ERROR(add(parts.source->layout(l, e, version)));
      }
    }
    if (layers_[l].shared_record == nullptr) continue;
    const RecordLayout& shared = parts.constants->layer(l).shared_layout;
    MOERT_RETURN_IF_ERROR(add(shared));
    layers_[l].shared_format = format_of_[&shared];
  }
  num_formats_ = static_cast<int>(formats.size());
  const auto bytes = static_cast<int64_t>(formats.size() * sizeof(DeviceFormat));
  MOERT_ASSIGN_OR_RETURN(formats_memory_, Buffer::Device(bytes));
  return CopyNow(formats_memory_.data(), formats.data(), static_cast<size_t>(bytes),
                 cudaMemcpyHostToDevice);
}

}  // namespace moert::cuda
