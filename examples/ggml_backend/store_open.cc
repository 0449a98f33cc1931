// Opens the experts of a model in libmoert.
#include <algorithm>
#include <string_view>
#include <utility>

#include "cpu_product.h"
#include "store.h"

namespace moert_ggml {
namespace {

// Alignments of expert parts. In RAM: as ggml requires of tensors. In device memory: the bytes that
// kernels load at once; only a tensor's beginning has ggml's alignment there.
constexpr int64_t kAlignment = 128;
constexpr int64_t kDeviceAlignment = 16;

// The default strategies: in RAM, and on a GPU, where misses are shared with the CPU if that is
// accepted.
constexpr char kInRam[] = "";
constexpr char kOnGpu[] = "fate";

// The object that a source's user_data points to.
struct SourceData {
  std::shared_ptr<const GgufModel> file;
  std::vector<Layer> layers;
  std::shared_ptr<CpuProduct> product;  // null: the CPU computes nothing
};

std::string Message(moert_error* error) {
  std::string text = moert_error_message(error);
  moert_error_destroy(error);
  return text;
}

// With `score` the library scores the next layer's experts itself, if it has the gate; the host
// computes the ids in any case.
moert_layer_spec Spec(const Layer& layer, const GgufModel& file, bool score) {
  moert_layer_spec spec;
  moert_layer_spec_init(&spec, sizeof spec);
  spec.hidden = layer.hidden;
  spec.intermediate = layer.intermediate;
  spec.num_experts = layer.experts;
  spec.model_layer = layer.block;
  spec.top_k = std::min(std::max(layer.top_k, 1), layer.experts);
  spec.routing = MOERT_ROUTING_EXTERNAL;
  if (score && layer.top_k > 0) file.Route(layer.block, &spec);
  return spec;
}

// The parts of all layers, each in memory and in the file that is mapped there. Appends the files
// to `files`.
std::vector<moert_opaque_part> Parts(const std::vector<Layer>& layers, bool on_device,
                                     std::vector<const char*>* files) {
  std::vector<moert_opaque_part> parts;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const Part& from : layers[l].parts) {
      moert_opaque_part part;
      moert_opaque_part_init(&part, sizeof part);
      part.layer = static_cast<int32_t>(l);
      part.bytes = from.bytes;
      part.zeros = from.zeros;
      part.alignment = on_device ? kDeviceAlignment : kAlignment;
      // CUDA's kernels count from expert to expert in blocks of the format, the CPU's in bytes.
      part.stride_multiple = on_device ? from.type_bytes : 1;
      part.memory = from.memory;
      if (!from.file.empty()) {
        auto file = std::find(files->begin(), files->end(), from.file);
        if (file == files->end()) file = files->insert(file, from.file.c_str());
        part.file = static_cast<int32_t>(file - files->begin());
        part.offset = from.offset;
        part.memory = static_cast<const char*>(from.memory) - from.offset;
      }
      parts.push_back(part);
    }
  }
  return parts;
}

moert_code ReadGate(void* user_data, const moert_read* read, moert_failure* failure) {
  const auto* from = static_cast<const SourceData*>(user_data);
  const int block = from->layers[static_cast<size_t>(read->layer)].block;
  if (from->file->ReadRouter(block, read->part, static_cast<float*>(read->dst.data))) {
    return MOERT_OK;
  }
  moert_failure_set(failure, "the router cannot be read from the GGUF");
  return MOERT_DATA_LOSS;
}

moert_code Multiply(void* user_data, const moert_cpu_job* job, moert_failure* failure) {
  return static_cast<const SourceData*>(user_data)->product->Multiply(*job, failure);
}

void FreeData(void* user_data) { delete static_cast<SourceData*>(user_data); }

void Log(void* /*user_data*/, moert_log_level level, const char* line) {
  if (level != MOERT_LOG_INFO) Say("%s", line);
}

moert_source* MakeSource(const std::string& name, const std::vector<Layer>& layers,
                         std::shared_ptr<const GgufModel> file,
                         const std::shared_ptr<CpuProduct>& product, bool on_device, bool score,
                         bool* any_gate, std::string* error) {
  std::vector<const char*> files;
  const std::vector<moert_opaque_part> parts = Parts(layers, on_device, &files);
  std::vector<moert_layer_spec> specs;
  for (const Layer& layer : layers) {
    specs.push_back(Spec(layer, *file, score));
    *any_gate = *any_gate || specs.back().routing != MOERT_ROUTING_EXTERNAL;
  }
  auto data = std::make_unique<SourceData>(SourceData{std::move(file), layers, product});
  moert_opaque_options opaque;
  moert_opaque_options_init(&opaque, sizeof opaque);
  opaque.format = "gguf";
  opaque.files = files.data();
  opaque.num_files = static_cast<int64_t>(files.size());
  opaque.user_data = data.get();
  opaque.gates = ReadGate;
  opaque.destroy = FreeData;
  if (product != nullptr) opaque.product = Multiply;
  moert_source* source = nullptr;
  moert_error* failure = nullptr;
  if (moert_source_create_opaque(name.c_str(), specs.data(), specs.size(), parts.data(),
                                 parts.size(), &opaque, &source, &failure) != MOERT_OK) {
    *error = Message(failure);
    return nullptr;
  }
  data.release();  // the source's now
  return source;
}

// Zeros for what is unknown.
moert_probe_info Machine() {
  moert_probe_info machine;
  moert_probe_info_init(&machine, sizeof machine);
  if (moert_probe(&machine, nullptr) != MOERT_OK) machine = {};
  return machine;
}

int64_t FixedBytes(const moert_memory& plan) {
  return plan.constant_bytes + plan.table_bytes + plan.workspace_bytes;
}

// The most bytes of slots: CUDA's kernels count a format's blocks over all slots in 32 bits.
int64_t MostSlotBytes(const std::vector<Layer>& layers) {
  int64_t block = INT64_MAX;
  for (const Layer& layer : layers) {
    for (const Part& part : layer.parts) block = std::min(block, part.type_bytes);
  }
  constexpr int64_t kBlocks = (int64_t{1} << 31) - (1 << 20);
  return block < INT64_MAX / kBlocks ? block * kBlocks : INT64_MAX / 2;
}

// As much of `wanted` as leaves a reserve free.
int64_t WithinFree(int64_t wanted, int64_t available) {
  if (available == 0) return wanted;  // not known
  return std::min(wanted, available - FreeReserve(available));
}

// Bytes that may be pinned: enough for all experts, as far as RAM allows.
int64_t PinnedBytes(const std::string& name, const Options& options, int64_t experts) {
  if (options.pinned_bytes > 0) return options.pinned_bytes;
  const int64_t most = WithinFree(experts + experts / 8 + (int64_t{1} << 30), FreeMemory());
  if (most < experts) {
    Say("%s: RAM has room for %s of experts beside what is left to others: further ones stay "
        "in the file",
        name.c_str(), BytesText(most).c_str());
  }
  return most;
}

// Turns the engine's budget into bytes: the requested share of the slots' bytes, as far as it can
// be used.
bool PlanBudget(const moert_source* source, const std::vector<Layer>& layers,
                const Options& options, Gpu* gpu, int64_t available, moert_engine_options* engine,
                moert_memory* plan, std::string* error) {
  engine->budget_bytes = options.budget_bytes;
  if (options.budget_fraction > 0) engine->budget_fraction = options.budget_fraction;
  moert_memory_init(plan, sizeof *plan);
  moert_error* failure = nullptr;
  if (moert_memory_plan(source, engine, plan, &failure) != MOERT_OK) {
    *error = Message(failure);
    return false;
  }
  engine->budget_bytes = plan->budget_bytes;
  if (!options.names_budget()) {
    engine->budget_bytes = WithinFree(plan->budget_bytes, available);
    // Keys and values are allocated after this; the budget then grows into the memory they leave.
    if (gpu != nullptr && engine->budget_bytes < plan->budget_bytes) {
      engine->budget_bytes = std::max(plan->minimum_bytes, engine->budget_bytes / 2);
    }
  }
  if (gpu == nullptr) return true;
  const int64_t most = FixedBytes(*plan) + MostSlotBytes(layers);
  if (engine->budget_bytes > most && plan->all_bytes > MostSlotBytes(layers)) {
    Say("the budget is %s, not %s: ggml's CUDA kernels count 2^31 blocks of a format over slots",
        BytesText(most).c_str(), BytesText(engine->budget_bytes).c_str());
    engine->budget_bytes = most;
  }
  return true;
}

}  // namespace

int64_t FreeMemory() { return Machine().memory_available_bytes; }

int64_t FreeBytes(const Gpu* gpu) { return gpu != nullptr ? gpu->FreeBytes() : FreeMemory(); }

int64_t FreeReserve(int64_t available) {
  return std::min(std::max(available / 8, int64_t{1} << 30), available / 2);
}

int64_t Layer::ExpertBytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  return bytes;
}

std::unique_ptr<Store> Store::Open(const std::string& name, const std::vector<Layer>& layers,
                                   std::shared_ptr<const GgufModel> file, const Options& options,
                                   Gpu* gpu, std::string* error) {
  std::shared_ptr<CpuProduct> product;
  if (gpu != nullptr && options.shares && !options.exact) {
    product = CpuProduct::Create(layers.size());
    if (product == nullptr) Say("%s: ggml's CPU kernels are not found", name.c_str());
  }
  // If the device serves misses, prediction costs no wait. On the CPU the default needs none.
  std::string strategy = options.strategy;
  if (strategy.empty()) strategy = gpu == nullptr ? kInRam : kOnGpu;
  bool any_gate = false;
  moert_source* source = MakeSource(name, layers, std::move(file), product, gpu != nullptr,
                                    !strategy.empty(), &any_gate, error);
  if (source == nullptr) return nullptr;

  std::vector<int> experts;
  for (const Layer& layer : layers) experts.push_back(layer.experts);
  std::unique_ptr<Store> store(new Store(experts));
  store->product_ = std::move(product);

  moert_engine_options engine;
  moert_engine_options_init(&engine, sizeof engine);
  if (!strategy.empty()) engine.strategy = strategy.c_str();
  engine.promise = store->product_ != nullptr ? "faithful" : "exact";
  // The products are ours: the library sees one row of ids, or those of a few tokens on the device.
  engine.max_tokens_per_forward = gpu != nullptr ? kFewTokens : 1;
  engine.threads = 1;
  engine.io_threads = options.io_threads;
  int64_t expert_bytes = 0;
  for (const Layer& layer : layers) expert_bytes += layer.experts * layer.ExpertBytes();
  if (gpu != nullptr) {
    engine.backend = gpu->in_host_memory() ? MOERT_BACKEND_CPU : MOERT_BACKEND_CUDA;
    engine.device = gpu->ordinal();
    // These threads read all experts into pinned memory now and multiply later, beside llama.cpp's
    // own thread and one that the driver may need.
    engine.threads = store->product_ == nullptr ? 0 : std::max(1, Machine().cpus - 2);
    engine.host_budget_bytes = PinnedBytes(name, options, expert_bytes);
  }
  moert_logger logger;
  moert_logger_init(&logger, sizeof logger);
  logger.log = Log;
  engine.logger = &logger;

  store->gates_ = any_gate;
  for (const Layer& layer : layers) store->top_k_.push_back(layer.top_k);
  store->hidden_ = layers[0].hidden;
  store->gpu_ = gpu;
  moert_memory plan;
  moert_error* failure = nullptr;
  const int64_t available = FreeBytes(gpu);
  if (!options.names_budget()) store->reserve_ = FreeReserve(available);
  const bool budgeted = PlanBudget(source, layers, options, gpu, available, &engine, &plan, error);
  const bool made =
      budgeted && moert_engine_create(source, &engine, &store->engine_, &failure) == MOERT_OK;
  if (budgeted && !made) *error = Message(failure);
  moert_source_destroy(source);
  if (!made) return nullptr;
  if (std::string_view(moert_engine_promise(store->engine_)) == "exact") store->product_ = nullptr;
  store->all_bytes_ = plan.all_bytes;
  store->budget_bytes_ = engine.budget_bytes;
  store->fixed_bytes_ = FixedBytes(plan);
  store->least_bytes_ = plan.minimum_bytes;
  store->most_bytes_ = gpu == nullptr ? INT64_MAX : FixedBytes(plan) + MostSlotBytes(layers);
  store->useful_ = std::min(FixedBytes(plan) + plan.all_bytes, store->most_bytes_);
  if (gpu != nullptr) store->Fill(layers, store->Held());
  if (store->product_ != nullptr && plan.pinned_bytes < engine.host_budget_bytes) {
    store->trial_.emplace(store->Held());
  }
  return store;
}

}  // namespace moert_ggml
