#include "moert/source/opaque_source.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "callback_source.h"
#include "guard.h"
#include "handles.h"
#include "layer_spec.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

constexpr uint64_t kMaxParts = 4096 * kMaxRecordParts;

moert_opaque_part DefaultPart() {
  moert_opaque_part part{};
  part.alignment = 1;
  part.stride_multiple = 1;
  part.file = -1;
  return part;
}

/// Calls destroy with the last reference, once it owns user_data.
struct Callbacks {
  moert_opaque_options c{};
  bool owns = false;

  ~Callbacks() {
    if (owns && c.destroy != nullptr) c.destroy(c.user_data);
  }
};

absl::Status ReadPart(const Callbacks& callbacks, const OpaqueRead& read) {
  moert_failure failure;
  const moert_code code = callbacks.c.read(callbacks.c.user_data, read.layer, read.expert,
                                           read.part, read.dst, read.bytes, &failure);
  return FromCallback(code, failure, "read callback");
}

absl::Status ReadGate(const Callbacks& callbacks, const WeightRead& cpp) {
  const moert_read read = ToC(cpp);
  moert_failure failure;
  const moert_code code = callbacks.c.gates(callbacks.c.user_data, &read, &failure);
  return FromCallback(code, failure, "gates callback");
}

void RunTasks(void* pool, int64_t count, void (*task)(void* arg, int64_t i, int32_t thread),
              void* arg) {
  static_cast<ThreadPool*>(pool)->Run(count, [=](int64_t i, int thread) { task(arg, i, thread); });
}

absl::Status Multiply(const Callbacks& callbacks, const OpaqueProduct& cpp) {
  static_assert(MOERT_MAX_PARTS == kMaxRecordParts);
  std::vector<moert_cpu_expert> experts;
  experts.reserve(cpp.experts.size());
  for (const OpaqueProduct::Expert& from : cpp.experts) {
    moert_cpu_expert expert{{}, from.pairs, from.expert};
    std::copy(from.parts.begin(), from.parts.end(), expert.part);
    experts.push_back(expert);
  }
  moert_cpu_job job{};
  job.struct_size = sizeof job;
  job.layer = cpp.layer;
  job.hidden = cpp.hidden;
  job.rows = cpp.rows;
  job.x = cpp.x;
  job.num_experts = static_cast<int64_t>(experts.size());
  job.experts = experts.data();
  job.pairs = static_cast<int64_t>(cpp.row_of.size());
  job.row_of = cpp.row_of.data();
  job.weights = cpp.weights.data();
  job.out = cpp.out;
  job.run = RunTasks;
  job.pool = cpp.pool;
  job.threads = cpp.pool->num_threads();
  moert_failure failure;
  const moert_code code = callbacks.c.product(callbacks.c.user_data, &job, &failure);
  return FromCallback(code, failure, "product callback");
}

absl::Status ReadParts(const moert_opaque_part* parts, uint64_t count, OpaqueWeights* weights) {
  MOERT_REQUIRE_NOT_NULL(parts);
  if (count < 1 || count > kMaxParts) {
    return Illegal("num_parts is ", count, ", legal is 1 to ", kMaxParts);
  }
  const auto layers = static_cast<int64_t>(weights->layers.size());
  return ReadArray(parts, count, "parts", [&](uint64_t i, const auto* in) -> absl::Status {
    moert_opaque_part c = DefaultPart();
    MOERT_RETURN_IF_ERROR(ReadStruct(in, "parts[]", &c));
    MOERT_RETURN_IF_ERROR(CheckRange(absl::StrCat("parts[", i, "].layer"), c.layer, 0, layers - 1));
    weights->layers[c.layer].push_back({.bytes = c.bytes,
                                        .alignment = c.alignment,
                                        .stride_multiple = c.stride_multiple,
                                        .memory = c.memory,
                                        .file = c.file,
                                        .offset = c.offset,
                                        .stride = c.stride,
                                        .zeros = c.zeros});
    return absl::OkStatus();
  });
}

absl::Status ReadFiles(const moert_opaque_options& c, OpaqueWeights* weights) {
  if (c.num_files == 0) return absl::OkStatus();
  if (c.files == nullptr || c.num_files < 0) {
    return Illegal("options.num_files is ", c.num_files,
                   c.files == nullptr ? ", files is NULL" : "");
  }
  for (int64_t i = 0; i < c.num_files; ++i) {
    if (c.files[i] == nullptr) return Illegal("options.files[", i, "]: must not be NULL");
    weights->files.emplace_back(c.files[i]);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_opaque_part_init(moert_opaque_part* part, uint64_t size) {
  InitStruct(part, size, DefaultPart());
}

moert_code moert_source_create_opaque(const char* name, const moert_layer_spec* layers,
                                      uint64_t num_layers, const moert_opaque_part* parts,
                                      uint64_t num_parts, const moert_opaque_options* options,
                                      moert_source** source, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    auto shared = std::make_shared<Callbacks>();
    if (options != nullptr) MOERT_RETURN_IF_ERROR(ReadStruct(options, "options", &shared->c));
    MOERT_ASSIGN_OR_RETURN(moert::MoeModelSpec model, ReadLayers(layers, num_layers));
    moert::OpaqueWeights weights;
    weights.layers.resize(model.layers.size());
    MOERT_RETURN_IF_ERROR(ReadParts(parts, num_parts, &weights));
    MOERT_RETURN_IF_ERROR(ReadFiles(shared->c, &weights));
    if (shared->c.format != nullptr) weights.format = shared->c.format;
    if (shared->c.read != nullptr) {
      weights.read = [shared](const moert::OpaqueRead& read) { return ReadPart(*shared, read); };
    }
    if (shared->c.gates != nullptr) {
      weights.gates = [shared](const moert::WeightRead& read) { return ReadGate(*shared, read); };
    }
    if (shared->c.product != nullptr) {
      weights.product = [shared](const moert::OpaqueProduct& product) {
        return Multiply(*shared, product);
      };
    }
    auto handle = std::make_unique<moert_source>();  // first: nothing may fail behind the source
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<moert::ExpertSource> made,
                           moert::MakeOpaqueSource(name == nullptr ? "host" : name,
                                                   std::move(model), std::move(weights)));
    // Memory belongs to the source like user_data, even if no function holds it.
    handle->source = std::shared_ptr<const moert::ExpertSource>(
        made.release(), [shared](const moert::ExpertSource* used) { delete used; });
    shared->owns = true;
    *source = handle.release();
    return absl::OkStatus();
  });
}

}  // extern "C"
