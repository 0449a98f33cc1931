#include "buffers.h"

#include <ggml-backend-impl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "mapped_file.h"
#include "models.h"
#include "stock.h"

namespace moert_ggml {
namespace {

struct State {
  ggml_backend_buffer_type type = {};
  Options options;
  std::atomic<int> used{0};  // see NoteUsedExperts
  std::mutex mutex;
  std::unordered_map<const ggml_backend_buffer*, std::unique_ptr<MappedBuffer>> mapped;
};

// Leaked: buffers may be freed while the process exits.
State& GetState() {
  static auto* state = new State;
  return *state;
}

// The `extra` of tensors with factors of experts.
char factors_mark;

const char* Name(ggml_backend_buffer_type_t /*type*/) { return "MOERT"; }

// Allocates the CPU's memory under our buffer type: activations, and weights that are not mapped.
ggml_backend_buffer_t Allocate(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_t buffer =
      ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
  if (buffer != nullptr) buffer->buft = type;
  return buffer;
}

size_t Alignment(ggml_backend_buffer_type_t /*type*/) {
  return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

bool IsHost(ggml_backend_buffer_type_t /*type*/) { return true; }

ggml_status InitTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (tensor->view_src != nullptr) return GGML_STATUS_SUCCESS;
  MappedBuffer* mapped = state.mapped.at(buffer).get();
  if (mapped->all_fit && PlaceTensor(mapped, tensor, Gpu::Get())) return GGML_STATUS_SUCCESS;
  AddTensor(mapped, tensor, state.options);
  if (!mapped->all_fit && AreFactorsOfExperts(tensor->name)) tensor->extra = &factors_mark;
  return GGML_STATUS_SUCCESS;
}

void FreeMapped(ggml_backend_buffer_t buffer) {
  State& state = GetState();
  std::unique_ptr<MappedBuffer> mapped;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    mapped = std::move(state.mapped.at(buffer));
    state.mapped.erase(buffer);
  }
  RemoveBuffer(mapped.get());
}

// The GGUF model that a file belongs to.
std::shared_ptr<const GgufModel> FileOf(const std::string& path) {
  for (const auto& model : GgufModel::Open()) {
    if (model->HasFile(path)) return model;
  }
  return std::make_shared<GgufModel>(GgufModel::Read(path));
}

// Whether the GPU has room for everything in a mapped buffer, beside a context's needs, and may
// hold it.
bool AllFit(const Options& options, int64_t bytes) {
  Gpu* gpu = options.gpu ? Gpu::Get() : nullptr;
  if (gpu == nullptr) return false;
  const int64_t free = gpu->FreeBytes();
  const int64_t reserve = std::max(free / 8, int64_t{1} << 30);
  const bool may =
      options.budget_fraction == 1 || options.budget_bytes >= bytes || !options.names_budget();
  return may && !options.keeps_all() && bytes <= free - reserve;
}

}  // namespace

void NoteUsedExperts(int used) { GetState().used = used; }

bool StaysWithStock(const ggml_tensor* weight) {
  return UsedGpu() == nullptr && LeftToStock(weight, GetState().options);
}

Gpu* UsedGpu() { return GetState().options.gpu ? Gpu::Get() : nullptr; }

ggml_backend_buffer_type_t MakeBufferType(ggml_backend_dev_t device, const Options& options) {
  State& state = GetState();
  state.options = options;
  state.type.iface.get_name = Name;
  state.type.iface.alloc_buffer = Allocate;
  state.type.iface.get_alignment = Alignment;
  state.type.iface.is_host = IsHost;
  state.type.device = device;
  return &state.type;
}

bool IsOurs(const ggml_backend_buffer* buffer) {
  return buffer != nullptr && buffer->buft == &GetState().type;
}

bool AreFactors(const ggml_tensor* tensor) {
  if (tensor->view_src != nullptr) tensor = tensor->view_src;
  return IsOurs(tensor->buffer) && tensor->extra == &factors_mark;
}

ggml_backend_buffer_t MapBuffer(void* address, size_t size) {
  ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(address, size);
  if (buffer == nullptr) return nullptr;
  State& state = GetState();
  buffer->buft = &state.type;
  buffer->iface.init_tensor = InitTensor;
  buffer->iface.free_buffer = FreeMapped;
  auto mapped = std::make_unique<MappedBuffer>();
  mapped->file = FileOf(FindMappedFile(address, size).path);
  mapped->stem = StemOf(mapped->file->path());
  mapped->used = state.used.load();
  mapped->all_fit = AllFit(state.options, static_cast<int64_t>(size));
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.mapped[buffer] = std::move(mapped);
  return buffer;
}

}  // namespace moert_ggml
