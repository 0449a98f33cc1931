#include "stock.h"

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "gguf_model.h"
#include "store.h"

namespace moert_ggml {
namespace {

// The model that is being loaded.
struct Loading {
  std::mutex mutex;
  std::set<std::string> asked;  // tensors: one that comes again is another load's
  bool left = false;
  std::set<std::string> said;  // paths
};

bool Fit(const GgufModel& model, const Options& options) {
  const int64_t experts = model.expert_bytes();
  if (options.budget_fraction > 0) return options.budget_fraction == 1;
  if (options.budget_bytes > 0) return options.budget_bytes >= experts;
  const int64_t available = FreeMemory();
  return model.file_bytes() <= available - FreeReserve(available);
}

std::shared_ptr<const GgufModel> ModelOf(const ggml_tensor* tensor) {
  for (const auto& model : GgufModel::Open()) {
    const GgufTensor* found = model->Find(tensor->name);
    if (found != nullptr && found->type == tensor->type && found->ne[0] == tensor->ne[0] &&
        found->ne[1] == tensor->ne[1] && found->ne[2] == tensor->ne[2]) {
      return model;
    }
  }
  return nullptr;
}

}  // namespace

bool LeftToStock(const ggml_tensor* weight, const Options& options) {
  if (options.keeps_all()) return false;
  static auto* loading = new Loading;
  const std::lock_guard<std::mutex> lock(loading->mutex);
  const bool first = loading->asked.empty();
  if (loading->asked.insert(weight->name).second && !first) return loading->left;
  loading->asked = {weight->name};
  const std::shared_ptr<const GgufModel> model = ModelOf(weight);
  loading->left = model != nullptr && Fit(*model, options);
  if (loading->left && loading->said.insert(model->path()).second) {
    Say("%s: all %s of experts fit: they are llama.cpp's, as without the plug-in",
        model->path().c_str(), BytesText(model->expert_bytes()).c_str());
  }
  return loading->left;
}

}  // namespace moert_ggml
