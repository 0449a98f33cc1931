#include <cstring>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/status_macros.h"
#include "callback_source.h"
#include "guard.h"
#include "handles.h"
#include "layer_spec.h"
#include "record.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_source_callbacks DefaultCallbacks() {
  moert_source_callbacks callbacks{};
  callbacks.weights_dtype = MOERT_BF16;
  return callbacks;
}

absl::Status CheckRecord(const ExpertSource& source, int32_t layer, int32_t expert,
                         int32_t version) {
  MOERT_RETURN_IF_ERROR(CheckRange("layer", layer, 0, source.model().num_layers() - 1));
  MOERT_RETURN_IF_ERROR(
      CheckRange("expert", expert, 0, source.model().layers[layer].num_experts - 1));
  return CheckRange("version", version, 0, source.num_versions() - 1);
}

moert_record_info InfoOf(const RecordLayout& layout, absl::string_view version) {
  moert_record_info info{};
  info.version = Intern(version);
  info.bytes = layout.bytes;
  info.hadamard = layout.format.hadamard;
  info.gate = ToC(layout.gate);
  info.up = ToC(layout.up);
  info.down = ToC(layout.down);
  info.gate_bias_offset = layout.gate.bias_offset;
  info.up_bias_offset = layout.up.bias_offset;
  info.down_bias_offset = layout.down.bias_offset;
  return info;
}

/// Reads into memory of the library: a source writes up to the next multiple of kRecordAlignment.
absl::Status ReadRecord(const ExpertSource& source, int32_t layer, int32_t expert, int32_t version,
                        void* dst, uint64_t dst_bytes) {
  const int64_t bytes = source.layout(layer, expert, version).bytes;
  const int64_t padded = (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  if (dst_bytes < static_cast<uint64_t>(bytes)) {
    return Illegal("dst_bytes is ", dst_bytes, ", the record takes ", bytes);
  }
  AlignedBuffer record;
  MOERT_RETURN_IF_ERROR(record.Reset(padded));
  MOERT_RETURN_IF_ERROR(
      source.ReadRecord(layer, expert, version, {record.data(), static_cast<size_t>(padded)}));
  std::memcpy(dst, record.data(), bytes);
  return absl::OkStatus();
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_source_callbacks_init(moert_source_callbacks* callbacks, uint64_t size) {
  InitStruct(callbacks, size, DefaultCallbacks());
}

moert_code moert_source_create(const char* name, const moert_layer_spec* layers,
                               uint64_t num_layers, const moert_source_callbacks* callbacks,
                               moert_source** source, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    moert_source_callbacks checked = DefaultCallbacks();
    MOERT_RETURN_IF_ERROR(ReadStruct(callbacks, "callbacks", &checked));
    MOERT_ASSIGN_OR_RETURN(moert::MoeModelSpec model, ReadLayers(layers, num_layers));
    auto handle = std::make_unique<moert_source>();  // first: nothing may fail behind the source
    MOERT_ASSIGN_OR_RETURN(handle->source, MakeCallbackSource(name == nullptr ? "host" : name,
                                                              std::move(model), checked));
    *source = handle.release();
    return absl::OkStatus();
  });
}

void moert_source_destroy(moert_source* source) { delete source; }

int32_t moert_source_layer_count(const moert_source* source) {
  return source == nullptr ? 0 : source->source->model().num_layers();
}

moert_code moert_source_layer(const moert_source* source, int32_t layer, moert_layer_spec* spec,
                              moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    return WriteLayer(source->source->model(), layer, spec);
  });
}

int32_t moert_source_version_count(const moert_source* source) {
  return source == nullptr ? 0 : source->source->num_versions();
}

moert_code moert_source_record(const moert_source* source, int32_t layer, int32_t expert,
                               int32_t version, moert_record_info* info, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    const moert::ExpertSource& from = *source->source;
    MOERT_RETURN_IF_ERROR(CheckRecord(from, layer, expert, version));
    return WriteStruct(InfoOf(from.layout(layer, expert, version), from.version_name(version)),
                       info, "info");
  });
}

moert_code moert_source_read(const moert_source* source, int32_t layer, int32_t expert,
                             int32_t version, void* dst, uint64_t dst_bytes, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    MOERT_REQUIRE_NOT_NULL(dst);
    MOERT_RETURN_IF_ERROR(CheckRecord(*source->source, layer, expert, version));
    return ReadRecord(*source->source, layer, expert, version, dst, dst_bytes);
  });
}

const char* moert_source_name(const moert_source* source) {
  return source == nullptr ? "" : source->source->name().c_str();
}

}  // extern "C"
