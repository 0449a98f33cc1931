#include "store.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

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

// With `score`, the library scores the next layer's experts by itself, if it has the gate; ids are
// the host's in any case.
moert_layer_spec Spec(const Layer& layer, const Gates& gates, bool score) {
  moert_layer_spec spec;
  moert_layer_spec_init(&spec, sizeof spec);
  spec.hidden = layer.hidden;
  spec.intermediate = layer.intermediate;
  spec.num_experts = layer.experts;
  spec.model_layer = layer.block;
  const bool gate =
      score && gates.top_k() > 0 && gates.Has(layer.block, layer.hidden, layer.experts);
  spec.routing = gate ? MOERT_ROUTING_SOFTMAX_TOPK : MOERT_ROUTING_EXTERNAL;
  spec.top_k = std::min(std::max(gates.top_k(), 1), layer.experts);
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
      part.bytes = from.bytes + from.zeros;
      part.alignment = kAlignment;
      part.stride_multiple = from.type_bytes;
      if (from.zeros > 0) {
        // Comes by ReadPart.
      } else if (from.file.empty()) {
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

// What is free in RAM, within a container's limits; 0: not known.
int64_t FreeMemory() {
  moert_probe_info machine;
  moert_probe_info_init(&machine, sizeof machine);
  return moert_probe(&machine, nullptr) == MOERT_OK ? machine.memory_available_bytes : 0;
}

// Without MOERT_BUDGET: all experts, which is 0, or what is free. An eighth of it, at least 1 GiB,
// at most a half, is for the context and everybody else.
int64_t FreeBudget(int64_t expert_bytes, int64_t available) {
  if (available == 0) return 0;
  const int64_t reserve = std::min(std::max(available / 8, int64_t{1} << 30), available / 2);
  const int64_t budget = available - reserve;
  return expert_bytes + expert_bytes / 16 < budget ? 0 : budget;
}

// What a source's user_data points to.
struct GateSource {
  Gates gates;
  std::vector<Layer> layers;
};

moert_code ReadGate(void* user_data, const moert_read* read, moert_failure* failure) {
  const auto* from = static_cast<const GateSource*>(user_data);
  if (read->part == MOERT_PART_ROUTER &&
      from->gates.Read(from->layers[static_cast<size_t>(read->layer)].block,
                       static_cast<float*>(read->dst.data))) {
    return MOERT_OK;
  }
  moert_failure_set(failure, "the router cannot be read from the GGUF");
  return MOERT_DATA_LOSS;
}

// One part of an expert, with zeros behind it.
moert_code ReadPart(void* user_data, int32_t layer, int32_t expert, int32_t part, void* dst,
                    int64_t bytes, moert_failure* failure) {
  const auto* source = static_cast<const GateSource*>(user_data);
  const Part& from = source->layers[static_cast<size_t>(layer)].parts[static_cast<size_t>(part)];
  if (!ReadMapped({from.file, from.offset}, from.memory, expert * from.bytes, from.bytes, dst)) {
    moert_failure_set(failure, "the GGUF cannot be read");
    return MOERT_DATA_LOSS;
  }
  std::memset(static_cast<char*>(dst) + from.bytes, 0, static_cast<size_t>(bytes - from.bytes));
  return MOERT_OK;
}

void FreeGates(void* user_data) { delete static_cast<GateSource*>(user_data); }

void Log(void* /*user_data*/, moert_log_level level, const char* line) {
  if (level != MOERT_LOG_INFO) Say("%s", line);
}

/// A source over the parts of a GGUF. Null: `error` says why.
moert_source* MakeSource(const std::string& name, const std::vector<moert_layer_spec>& specs,
                         const std::vector<moert_opaque_part>& parts,
                         const std::vector<const char*>& files, std::unique_ptr<GateSource> gates,
                         std::string* error) {
  moert_opaque_options opaque;
  moert_opaque_options_init(&opaque, sizeof opaque);
  opaque.format = "gguf";
  opaque.files = files.data();
  opaque.num_files = static_cast<int64_t>(files.size());
  opaque.user_data = gates.get();
  opaque.read = ReadPart;
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
  return source;
}

/// Without the strategy and the logger.
moert_engine_options MakeEngineOptions(const Options& options, Gpu* gpu, int64_t expert_bytes) {
  moert_engine_options engine;
  moert_engine_options_init(&engine, sizeof engine);
  engine.budget_bytes =
      options.budget_bytes > 0 || options.budget_fraction > 0
          ? options.budget_bytes
          : FreeBudget(expert_bytes, gpu != nullptr ? gpu->FreeBytes() : FreeMemory());
  if (options.budget_fraction > 0) engine.budget_fraction = options.budget_fraction;
  // Products are ours: the library sees one row of ids, or those of a few tokens on the device.
  engine.max_tokens_per_forward = gpu != nullptr ? Store::kFewTokens : 1;
  engine.threads = 1;
  engine.io_threads = options.io_threads;
  if (gpu != nullptr) {
    engine.backend = gpu->in_host_memory() ? MOERT_BACKEND_CPU : MOERT_BACKEND_CUDA;
    engine.device = gpu->ordinal();
    engine.threads = 0;  // read all experts into pinned memory now
    engine.host_budget_bytes = options.pinned_bytes > 0
                                   ? options.pinned_bytes
                                   : expert_bytes + expert_bytes / 8 + (int64_t{1} << 30);
  }
  return engine;
}

}  // namespace

int64_t Layer::ExpertBytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  return bytes;
}

std::unique_ptr<Store> Store::Open(const std::string& name, const std::vector<Layer>& layers,
                                   const Options& options, Gpu* gpu, std::string* error) {
  std::vector<const char*> files;
  const std::vector<moert_opaque_part> parts = Parts(layers, &files);
  auto gates = std::make_unique<GateSource>();
  // Where the device serves misses prediction costs no wait. On the CPU the default needs none.
  const std::string strategy =
      options.strategy.empty() && gpu != nullptr ? "fate" : options.strategy;
  const bool score = !strategy.empty();
  if (score || gpu != nullptr) {
    for (const Layer& layer : layers) {
      for (const Part& part : layer.parts) gates->gates.Find(part.file);
    }
  }
  std::vector<moert_layer_spec> specs;
  int64_t expert_bytes = 0;
  bool any_gate = false;
  for (const Layer& layer : layers) {
    specs.push_back(Spec(layer, gates->gates, score));
    any_gate = any_gate || specs.back().routing != MOERT_ROUTING_EXTERNAL;
    expert_bytes += layer.experts * layer.ExpertBytes();
  }
  gates->layers = layers;
  const int top_k = gates->gates.top_k();
  moert_source* const source = MakeSource(name, specs, parts, files, std::move(gates), error);
  if (source == nullptr) return nullptr;

  moert_engine_options engine = MakeEngineOptions(options, gpu, expert_bytes);
  if (!strategy.empty()) engine.strategy = strategy.c_str();
  moert_logger logger;
  moert_logger_init(&logger, sizeof logger);
  logger.log = Log;
  engine.logger = &logger;

  std::vector<int> experts;
  for (const Layer& layer : layers) experts.push_back(layer.experts);
  std::unique_ptr<Store> store(new Store(std::move(experts)));
  store->gates_ = any_gate;
  store->top_k_ = top_k;
  store->hidden_ = layers[0].hidden;
  store->gpu_ = gpu;
  moert_error* failure = nullptr;
  const moert_code code = moert_engine_create(source, &engine, &store->engine_, &failure);
  moert_source_destroy(source);
  if (code != MOERT_OK) {
    *error = Message(failure);
    return nullptr;
  }
  if (gpu != nullptr) {
    store->Fill(layers,
                engine.budget_fraction < 1 || engine.budget_bytes == 0
                    ? engine.budget_fraction
                    : static_cast<double>(engine.budget_bytes) / static_cast<double>(expert_bytes));
  }
  return store;
}

void Store::Fill(const std::vector<Layer>& layers, double share) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const double fit = layers[l].experts * std::min(share, 1.0);
    std::vector<int32_t> experts(static_cast<size_t>(fit)), slot_ids(experts.size());
    std::iota(experts.begin(), experts.end(), 0);
    moert_slots slots;
    std::string error;
    if (!experts.empty()) Fetch(static_cast<int>(l), experts, {}, slot_ids, &slots, &error);
    Release();
  }
}

Store::~Store() {
  moert_step_end(step_, nullptr);
  moert_engine_destroy(engine_);
}

void Store::EndStep() {
  moert_step_end(step_, nullptr);
  step_ = nullptr;
}

// A step is one pass over the layers, in their order.
bool Store::BeginStep(int layer, int64_t rows, std::string* error) {
  if (step_ == nullptr || layer < layer_ || rows != rows_) {
    EndStep();
    moert_step_options step;
    moert_step_options_init(&step, sizeof step);
    step.rows = rows_ = rows;
    if (gpu_ != nullptr && !gpu_->in_host_memory()) step.stream = gpu_->stream()->get();
    moert_error* failure = nullptr;
    if (moert_step_begin(engine_, &step, &step_, &failure) != MOERT_OK) {
      *error = Message(failure);
      return false;
    }
  }
  layer_ = layer;
  return true;
}

Store::Result Store::Fetch(int layer, std::span<const int32_t> experts,
                           std::span<const float> hidden, std::span<int32_t> slot_ids,
                           moert_slots* slots, std::string* error) {
  if (!BeginStep(layer, /*rows=*/1, error)) return Result::kFailed;
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof fetch);
  const auto count = static_cast<int64_t>(experts.size());
  moert_tensor_init(&fetch.ids, const_cast<int32_t*>(experts.data()), 1, count, MOERT_I32);
  moert_tensor_init(&fetch.slot_ids, slot_ids.data(), 1, count, MOERT_I32);
  if (gates_ && !hidden.empty()) {
    moert_tensor_init(&fetch.hidden, const_cast<float*>(hidden.data()), 1,
                      static_cast<int64_t>(hidden.size()), MOERT_F32);
  }
  const Result result = DoFetch(layer, fetch, slots, error);
  if (result == Result::kOk && gpu_ != nullptr) gpu_->stream()->Synchronize();
  return result;
}

Store::Result Store::FetchOnDevice(int layer, int64_t tokens, const int32_t* ids,
                                   const float* hidden, int32_t* slot_ids, moert_slots* slots,
                                   std::string* error) {
  if (!BeginStep(layer, tokens, error)) return Result::kFailed;
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof fetch);
  moert_tensor_init(&fetch.ids, const_cast<int32_t*>(ids), tokens, top_k_, MOERT_I32);
  moert_tensor_init(&fetch.slot_ids, slot_ids, tokens, top_k_, MOERT_I32);
  if (gates_ && tokens == 1) {
    moert_tensor_init(&fetch.hidden, const_cast<float*>(hidden), 1, hidden_, MOERT_F32);
  }
  const moert_place place = gpu_->in_host_memory() ? MOERT_HOST : MOERT_DEVICE;
  fetch.ids.place = fetch.slot_ids.place = fetch.hidden.place = place;
  return DoFetch(layer, fetch, slots, error);
}

Store::Result Store::DoFetch(int layer, const moert_fetch& fetch, moert_slots* slots,
                             std::string* error) {
  moert_slots_init(slots, sizeof *slots);
  moert_error* failure = nullptr;
  const moert_code code = moert_layer_fetch(step_, layer, &fetch, slots, &failure);
  held_ = code == MOERT_OK;
  if (held_) return Result::kOk;
  *error = Message(failure);
  if (code == MOERT_RESOURCE_EXHAUSTED) return Result::kTooMany;
  EndStep();
  return Result::kFailed;
}

bool Store::Reserve(int layer) {
  if (!staged_) return false;
  moert_slots slots;
  std::string error;
  staged_ = CopyLayer(layer, {}, nullptr, &slots, &error);
  if (staged_) {
    const auto bytes = static_cast<size_t>(slots.slots * slots.stride[0]);
    staged_ = staging_.Reserve(gpu_, bytes);
    error = "no GPU memory for two layers, " + BytesText(2 * static_cast<int64_t>(bytes));
  }
  if (!staged_) GiveUpStaging(error);
  return staged_;
}

void Store::GiveUpStaging(const std::string& error) {
  staged_ = false;
  Say("prompts are computed in parts: %s", error.c_str());
}

bool Store::Stage(int layer, std::span<const int32_t> experts, std::string* error) {
  *error = "the driver refuses to order streams";
  void* place = staging_.Enter(gpu_, layer);
  if (place == nullptr) return false;
  const std::vector<int32_t> missing = staging_.Add(layer, experts);
  beside_ += std::ssize(missing);
  if (missing.empty() || CopyLayer(layer, missing, place, staging_.slots(layer), error)) {
    return true;
  }
  staging_.Forget(layer);
  return false;
}

bool Store::CopyLayer(int layer, std::span<const int32_t> experts, void* to, moert_slots* slots,
                      std::string* error) {
  if (!BeginStep(layer, rows_, error)) return false;
  moert_slots_init(slots, sizeof *slots);
  moert_error* failure = nullptr;
  if (moert_layer_copy(step_, layer, experts.data(), static_cast<int64_t>(experts.size()), to,
                       slots, &failure) == MOERT_OK)
    return true;
  *error = Message(failure);
  EndStep();
  return false;
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
  std::string all = text;
  if (beside_ > 0) {
    std::snprintf(text, sizeof text, "; %lld experts came beside the cache",
                  static_cast<long long>(beside_));
    all += text;
  }
  if (calls_ > 0) {
    std::snprintf(text, sizeof text,
                  "; %lld layer calls of few tokens took %.1f us of the host each",
                  static_cast<long long>(calls_),
                  static_cast<double>(host_.count()) * 1e-3 / static_cast<double>(calls_));
    all += text;
  }
  return all;
}

}  // namespace moert_ggml
