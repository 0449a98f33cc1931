#include "store.h"

#include <algorithm>
#include <cstdio>

#include "mapped_file.h"

namespace moert_ggml {
namespace {

// The address of expert parts in a slot: what ggml asks of tensors, for its GPU backends too.
constexpr int64_t kAlignment = 128;

std::string Message(moert_error* error) {
  std::string text = moert_error_message(error);
  moert_error_destroy(error);
  return text;
}

// With `gates`, the library scores the next layer's by itself; ids are the host's in any case.
moert_layer_spec Spec(const Layer& layer, const Gates& gates) {
  moert_layer_spec spec;
  moert_layer_spec_init(&spec, sizeof spec);
  spec.hidden = layer.hidden;
  spec.intermediate = layer.intermediate;
  spec.num_experts = layer.experts;
  spec.model_layer = layer.block;
  const bool gate = gates.top_k() > 0 && gates.Has(layer.block, layer.hidden, layer.experts);
  spec.routing = gate ? MOERT_ROUTING_SOFTMAX_TOPK : MOERT_ROUTING_EXTERNAL;
  spec.top_k = gate ? gates.top_k() : 1;
  return spec;
}

// The parts of all layers, each in its file or in memory. Files go to `files`.
std::vector<moert_opaque_part> Parts(const std::vector<Layer>& layers,
                                     std::vector<const char*>* files) {
  std::vector<moert_opaque_part> parts;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const Part& from : layers[l].parts) {
      moert_opaque_part part;
      moert_opaque_part_init(&part, sizeof part);
      part.layer = static_cast<int32_t>(l);
      part.bytes = from.bytes;
      part.alignment = kAlignment;
      part.stride_multiple = from.type_bytes;
      if (from.file.empty()) {
        part.memory = from.memory;
      } else {
        auto file = std::find(files->begin(), files->end(), from.file);
        if (file == files->end()) file = files->insert(file, from.file.c_str());
        part.file = static_cast<int32_t>(file - files->begin());
        part.offset = from.offset;
      }
      parts.push_back(part);
    }
  }
  return parts;
}

// Without MOERT_BUDGET: all experts, which is 0, or what is free, within a container's limits too.
// An eighth of it, at least 1 GiB, at most a half, is for the context and everybody else.
int64_t FreeBudget(int64_t expert_bytes) {
  moert_probe_info machine;
  moert_probe_info_init(&machine, sizeof machine);
  if (moert_probe(&machine, nullptr) != MOERT_OK) return 0;
  const int64_t available = machine.memory_available_bytes;
  if (available == 0) return 0;
  const int64_t reserve = std::min(std::max(available / 8, int64_t{1} << 30), available / 2);
  const int64_t budget = available - reserve;
  return expert_bytes + expert_bytes / 16 < budget ? 0 : budget;
}

// What a source's user_data points to.
struct GateSource {
  Gates gates;
  std::vector<int> blocks;  // of layers
};

moert_code ReadGate(void* user_data, const moert_read* read, moert_failure* failure) {
  const auto* from = static_cast<const GateSource*>(user_data);
  if (read->part == MOERT_PART_ROUTER &&
      from->gates.Read(from->blocks[static_cast<size_t>(read->layer)],
                       static_cast<float*>(read->dst.data))) {
    return MOERT_OK;
  }
  moert_failure_set(failure, "the router cannot be read from the GGUF");
  return MOERT_DATA_LOSS;
}

void FreeGates(void* user_data) { delete static_cast<GateSource*>(user_data); }

void Log(void* /*user_data*/, moert_log_level level, const char* line) {
  if (level != MOERT_LOG_INFO) Say("%s", line);
}

}  // namespace

int64_t Layer::ExpertBytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  return bytes;
}

std::unique_ptr<Store> Store::Open(const std::string& name, const std::vector<Layer>& layers,
                                   const Options& options, std::string* error) {
  std::vector<const char*> files;
  const std::vector<moert_opaque_part> parts = Parts(layers, &files);
  auto gates = std::make_unique<GateSource>();
  if (!options.strategy.empty()) {  // the default needs none
    for (const char* file : files) gates->gates.Find(file);
  }
  std::vector<moert_layer_spec> specs;
  int64_t expert_bytes = 0;
  bool any_gate = false;
  for (const Layer& layer : layers) {
    specs.push_back(Spec(layer, gates->gates));
    any_gate = any_gate || specs.back().routing != MOERT_ROUTING_EXTERNAL;
    expert_bytes += layer.experts * layer.ExpertBytes();
    gates->blocks.push_back(layer.block);
  }

  moert_opaque_options opaque;
  moert_opaque_options_init(&opaque, sizeof opaque);
  opaque.format = "gguf";
  opaque.files = files.data();
  opaque.num_files = static_cast<int64_t>(files.size());
  opaque.user_data = gates.get();
  opaque.gates = ReadGate;
  opaque.destroy = FreeGates;
  moert_source* source = nullptr;
  moert_error* failure = nullptr;
  if (moert_source_create_opaque(name.c_str(), specs.data(), specs.size(), parts.data(),
                                 parts.size(), &opaque, &source, &failure) != MOERT_OK) {
    *error = Message(failure);
    return nullptr;
  }
  gates.release();  // the source's now

  moert_engine_options engine;
  moert_engine_options_init(&engine, sizeof engine);
  if (!options.strategy.empty()) engine.strategy = options.strategy.c_str();
  engine.budget_bytes = options.budget_bytes > 0 || options.budget_fraction > 0
                            ? options.budget_bytes
                            : FreeBudget(expert_bytes);
  if (options.budget_fraction > 0) engine.budget_fraction = options.budget_fraction;
  engine.max_tokens_per_forward = 1;  // products are ours: the library sees one row of ids
  engine.threads = 1;
  engine.io_threads = options.io_threads;
  moert_logger logger;
  moert_logger_init(&logger, sizeof logger);
  logger.log = Log;
  engine.logger = &logger;

  std::unique_ptr<Store> store(new Store);
  store->gates_ = any_gate;
  const moert_code code = moert_engine_create(source, &engine, &store->engine_, &failure);
  moert_source_destroy(source);
  if (code != MOERT_OK) {
    *error = Message(failure);
    return nullptr;
  }
  return store;
}

Store::~Store() {
  moert_step_end(step_, nullptr);
  moert_engine_destroy(engine_);
}

// A step is one pass over the layers, in their order.
bool Store::BeginStep(int layer, std::string* error) {
  if (step_ != nullptr && layer >= layer_) return true;
  moert_step_end(step_, nullptr);
  step_ = nullptr;
  moert_error* failure = nullptr;
  if (moert_step_begin(engine_, nullptr, &step_, &failure) == MOERT_OK) return true;
  *error = Message(failure);
  return false;
}

Store::Result Store::Fetch(int layer, std::span<const int32_t> experts,
                           std::span<const float> hidden, std::span<int32_t> slot_ids,
                           moert_slots* slots, std::string* error) {
  if (!BeginStep(layer, error)) return Result::kFailed;
  layer_ = layer;
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof fetch);
  const auto count = static_cast<int64_t>(experts.size());
  moert_tensor_init(&fetch.ids, const_cast<int32_t*>(experts.data()), 1, count, MOERT_I32);
  moert_tensor_init(&fetch.slot_ids, slot_ids.data(), 1, count, MOERT_I32);
  if (gates_ && !hidden.empty()) {
    moert_tensor_init(&fetch.hidden, const_cast<float*>(hidden.data()), 1,
                      static_cast<int64_t>(hidden.size()), MOERT_F32);
  }
  moert_slots_init(slots, sizeof *slots);
  moert_error* failure = nullptr;
  const moert_code code = moert_layer_fetch(step_, layer, &fetch, slots, &failure);
  if (code == MOERT_OK) {
    held_ = true;
    return Result::kOk;
  }
  *error = Message(failure);
  if (code == MOERT_RESOURCE_EXHAUSTED) return Result::kTooMany;
  moert_step_end(step_, nullptr);  // the next layer call starts afresh
  step_ = nullptr;
  return Result::kFailed;
}

void Store::Release() {
  if (held_) moert_slots_release(step_, layer_, nullptr);
  held_ = false;
}

std::string Store::Statistics() const {
  moert_stats stats;
  moert_stats_init(&stats, sizeof stats);
  if (moert_engine_stats(engine_, &stats, nullptr) != MOERT_OK) return "";
  char text[400];
  std::snprintf(text, sizeof text,
                "%lld lookups, %lld resident, %lld prefetched, %lld late, %lld loads, %lld "
                "prefetches, %s read, at most %s held of %s, %.3f s stalled",
                static_cast<long long>(stats.lookups), static_cast<long long>(stats.hits_resident),
                static_cast<long long>(stats.hits_prefetched), static_cast<long long>(stats.late),
                static_cast<long long>(stats.loads), static_cast<long long>(stats.prefetches),
                BytesText(stats.bytes_loaded).c_str(), BytesText(stats.peak_bytes).c_str(),
                BytesText(stats.budget_bytes).c_str(),
                static_cast<double>(stats.stalled_ns) * 1e-9);
  return text;
}

}  // namespace moert_ggml
