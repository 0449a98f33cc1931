#include "models.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "mapped_file.h"

namespace moert_ggml {
namespace {

// Models that may still get tensors from another file of theirs. Leaked: a host may free models
// while the process exits.
std::mutex& RegistryMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::vector<std::weak_ptr<Model>>& Registry() {
  static auto* models = new std::vector<std::weak_ptr<Model>>;
  return *models;
}

// Bytes after a tensor that kernels may read.
int64_t Padding(ggml_backend_buffer_type_t type, const ggml_tensor* tensor) {
  return static_cast<int64_t>(ggml_backend_buft_get_alloc_size(type, tensor) - ggml_nbytes(tensor));
}

// ggml's CUDA kernels count the blocks of a tensor in 32 bits; here the tensor is the place beside
// the cache, which holds a layer.
bool Addressable(const Layer& layer) {
  for (const Part& part : layer.parts) {
    if (layer.experts * layer.ExpertBytes() / part.type_bytes >= INT32_MAX - (1 << 20))
      return false;
  }
  return true;
}

bool IsExperts(const ggml_tensor* tensor) {
  return BlockOfExperts(tensor->name) >= 0 && tensor->ne[2] >= 2 && tensor->ne[3] == 1 &&
         ggml_is_contiguous(tensor);
}

bool IsDown(const ggml_tensor* tensor) { return std::strstr(tensor->name, "ffn_down") != nullptr; }

}  // namespace

std::string StemOf(const std::string& path) {
  int end = 0;
  const size_t dash = path.size() < 20 ? std::string::npos : path.size() - 20;
  if (dash != std::string::npos &&
      std::sscanf(path.c_str() + dash, "-%*5d-of-%*5d.gguf%n", &end) == 0 && end == 20) {
    return path.substr(0, dash);
  }
  return path;
}

Model::~Model() { Close(); }

bool Model::Add(ggml_tensor* tensor, int block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (opened_) return false;
  auto& tensors = blocks_[block];
  for (const auto& other : tensors) {
    if (std::strcmp(other->tensor->name, tensor->name) == 0) return false;
    if (other->tensor->ne[2] != tensor->ne[2]) return true;  // stays where it is mapped
  }
  tensors.push_back(std::make_unique<ExpertTensor>(ExpertTensor{this, block, tensor}));
  tensor->extra = tensors.back().get();
  return true;
}

// The layers of the store; assigns each tensor its place in them.
std::vector<Layer> Model::Arrange(Gpu* gpu) {
  std::vector<Layer> layers;
  for (auto& [block, tensors] : blocks_) {
    Layer layer;
    layer.block = block;
    layer.top_k = UsedExperts(block);
    for (auto& expert : tensors) {
      const ggml_tensor* t = expert->tensor;
      expert->layer = static_cast<int>(layers.size());
      expert->part = static_cast<int>(layer.parts.size());
      Part part;
      part.bytes = static_cast<int64_t>(t->nb[2]);
      part.type_bytes = static_cast<int64_t>(ggml_type_size(t->type));
      if (gpu != nullptr) part.zeros = Padding(gpu->cuda_type(), t);
      part.memory = t->data;
      const FileRange file = FindMappedFile(t->data, ggml_nbytes(t));
      part.file = file.path;
      part.offset = file.offset;
      layer.parts.push_back(part);
      layer.experts = static_cast<int>(t->ne[2]);
      layer.hidden = IsDown(t) ? t->ne[1] : t->ne[0];
      layer.intermediate = IsDown(t) ? t->ne[0] : t->ne[1];
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

// The number that a user gave to llama.cpp replaces the file's, unless the file has one per block.
int Model::UsedExperts(int block) const {
  return used_ > 0 && !file_->used_by_block() ? used_ : file_->UsedExperts(block);
}

Store* Model::store() {
  std::string error;
  if (!opened_ && !Open(nullptr, &error)) {
    Say("%s: experts are multiplied where they are mapped, as without the plug-in: %s",
        stem_.c_str(), error.c_str());
  }
  opened_ = true;
  return store_.get();
}

bool Model::OpenOn(Gpu* gpu) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string error;
  if (opened_) {
    MakeRoom();
    return store_ != nullptr && store_->on_device();
  }
  if (Open(gpu, &error)) return opened_ = true;
  Say("%s: the CPU multiplies experts, not the GPU: %s", stem_.c_str(), error.c_str());
  return false;
}

bool Model::Open(Gpu* gpu, std::string* error) {
  const std::vector<Layer> layers = Arrange(gpu);
  if (gpu != nullptr && !std::all_of(layers.begin(), layers.end(), Addressable)) {
    *error = "a layer of them is more than ggml's CUDA kernels can address";
    return false;
  }
  Options options = options_;
  std::string wrong;
  if (!options.budget_file.empty() &&
      !budget_file_.Read(&options.budget_bytes, &options.budget_fraction, &wrong)) {
    Say("%s: the budget is that of the start: %s", stem_.c_str(), wrong.c_str());
  }
  store_ = Store::Open(stem_, layers, file_, options, gpu, error);
  if (store_ == nullptr) return false;
  said_ = store_->budget_bytes();
  Say("%s: %zu layers, %s of experts, a budget of %s%s", stem_.c_str(), layers.size(),
      BytesText(store_->all_bytes()).c_str(), BytesText(store_->budget_bytes()).c_str(),
      gpu == nullptr     ? ""
      : store_->shares() ? ", on the GPU, and on the CPU what would be late"
                         : ", on the GPU");
  // From now on the library reads the experts itself. Pages that loading the model has mapped may
  // go.
  bool dropped = true;
  for (const auto& [block, tensors] : blocks_) {
    for (const auto& expert : tensors) {
      dropped = DropMappedPages(expert->tensor->data, ggml_nbytes(expert->tensor)) && dropped;
    }
  }
  if (!dropped) {
    Say("%s: the file is locked in RAM (--mlock): its experts take memory there, and the budget's",
        stem_.c_str());
  }
  return true;
}

// Makes room for a context, whose memory llama.cpp allocates after this. If it is refused, the
// budget stays.
void Model::MakeRoom() {
  std::string error;
  if (store_ == nullptr || store_->reserve() == 0) return;
  const MemoryNow now = store_->Memory();
  store_->SetBudget(std::max(now.least, now.budget / 2), 0, &error);
}

void Model::Adapt() {
  int64_t bytes = 0;
  double fraction = 0;
  std::string error;
  if (!options_.budget_file.empty()) {
    if (!budget_file_.ReadChanged(&bytes, &fraction, &error)) {
      if (!error.empty()) Say("%s: the budget stays: %s", stem_.c_str(), error.c_str());
      return;
    }
  } else if (store_->reserve() > 0) {
    const MemoryNow now = store_->Memory();
    bytes = FollowFree(now, store_->reserve());
    if (bytes == now.budget) return;
  } else {
    return;
  }
  const int64_t before = store_->budget_bytes();
  if (!store_->SetBudget(bytes, fraction, &error)) {
    if (error == refused_) return;
    Say("%s: the budget stays %s: %s", stem_.c_str(), BytesText(before).c_str(), error.c_str());
    refused_ = error;
    return;
  }
  // A budget that follows free memory is reported only if it has halved or doubled since the last
  // report.
  const int64_t now = store_->budget_bytes();
  const bool little = options_.budget_file.empty() && now < 2 * said_ && now > said_ / 2;
  if (now == before || little) return;
  Say("%s: a budget of %s from now on", stem_.c_str(), BytesText(now).c_str());
  said_ = now;
}

void Model::Close() {
  if (store_ != nullptr && options_.statistics) {
    Say("%s: %s", stem_.c_str(), store_->Statistics().c_str());
  }
  if (store_ != nullptr) statistics_.Finish(*store_);
  store_.reset();
  opened_ = true;
}

void AddTensor(MappedBuffer* buffer, ggml_tensor* tensor, const Options& options) {
  if (!IsExperts(tensor)) return;
  const int block = BlockOfExperts(tensor->name);
  const std::lock_guard<std::mutex> lock(RegistryMutex());
  for (const auto& model : buffer->models) {
    if (model->Add(tensor, block)) return;
  }
  auto& registry = Registry();
  std::erase_if(registry, [](const auto& model) { return model.expired(); });
  for (const auto& known : registry) {
    std::shared_ptr<Model> model = known.lock();
    if (model == nullptr || model->stem() != buffer->stem || !model->Add(tensor, block)) continue;
    buffer->models.push_back(std::move(model));
    return;
  }
  auto model = std::make_shared<Model>(buffer->stem, buffer->file, buffer->used, options);
  model->Add(tensor, block);
  registry.push_back(model);
  buffer->models.push_back(std::move(model));
}

bool OpenModelsOn(Gpu* gpu) {
  std::vector<std::shared_ptr<Model>> models;
  {
    const std::lock_guard<std::mutex> lock(RegistryMutex());
    for (const auto& known : Registry()) {
      if (std::shared_ptr<Model> model = known.lock()) models.push_back(std::move(model));
    }
  }
  bool all = true;
  for (const auto& model : models) all = model->OpenOn(gpu) && all;
  return all;
}

bool PlaceTensor(MappedBuffer* buffer, ggml_tensor* tensor, Gpu* gpu) {
  if (!IsExperts(tensor)) return false;
  ggml_backend_buffer_t place = ggml_backend_buft_alloc_buffer(
      gpu->cuda_type(), ggml_backend_buft_get_alloc_size(gpu->cuda_type(), tensor));
  if (place == nullptr) return false;
  buffer->placed.push_back(place);
  ggml_backend_buffer_set_usage(place, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  void* const mapped = tensor->data;
  tensor->buffer = place;
  tensor->data = ggml_backend_buffer_get_base(place);
  ggml_backend_buffer_init_tensor(place, tensor);
  ggml_backend_tensor_set(tensor, mapped, 0, ggml_nbytes(tensor));
  DropMappedPages(mapped, ggml_nbytes(tensor));
  return true;
}

void RemoveBuffer(MappedBuffer* buffer) {
  for (ggml_backend_buffer_t place : buffer->placed) ggml_backend_buffer_free(place);
  buffer->placed.clear();
  for (const auto& model : buffer->models) {
    const std::lock_guard<std::mutex> lock(model->mutex());
    model->Close();
  }
  buffer->models.clear();
}

}  // namespace moert_ggml
