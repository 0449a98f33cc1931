#include "gguf_model.h"

#include <gguf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace moert_ggml {
namespace {

// llama.cpp's numbers of "expert_gating_func".
enum Gating { kUnsaid = 0, kSoftmax = 1, kSigmoid = 2, kTopKSoftmax = 3, kSqrtSoftplus = 4 };

// A model's metadata by key.
class Values {
 public:
  explicit Values(const gguf_context* file) : file_(file) {}

  std::string Text(const std::string& key) const {
    const int64_t at = gguf_find_key(file_, key.c_str());
    const bool text = at >= 0 && gguf_get_kv_type(file_, at) == GGUF_TYPE_STRING;
    return text ? gguf_get_val_str(file_, at) : "";
  }
  // A single number, or the elements of an array.
  std::vector<int64_t> Numbers(const std::string& key) const {
    const int64_t at = gguf_find_key(file_, key.c_str());
    if (at < 0) return {};
    const bool array = gguf_get_kv_type(file_, at) == GGUF_TYPE_ARRAY;
    const gguf_type type = array ? gguf_get_arr_type(file_, at) : gguf_get_kv_type(file_, at);
    if (type == GGUF_TYPE_STRING) return {};
    if (!array) return Take(type, gguf_get_val_data(file_, at), 1);
    return Take(type, gguf_get_arr_data(file_, at), gguf_get_arr_n(file_, at));
  }
  int64_t Number(const std::string& key, int64_t otherwise) const {
    const std::vector<int64_t> numbers = Numbers(key);
    return numbers.empty() ? otherwise : numbers[0];
  }

 private:
  static std::vector<int64_t> Take(gguf_type type, const void* data, size_t count) {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < count; ++i) {
      switch (type) {
        case GGUF_TYPE_UINT16:
          numbers.push_back(static_cast<const uint16_t*>(data)[i]);
          break;
        case GGUF_TYPE_UINT32:
          numbers.push_back(static_cast<const uint32_t*>(data)[i]);
          break;
        case GGUF_TYPE_INT32:
          numbers.push_back(static_cast<const int32_t*>(data)[i]);
          break;
        case GGUF_TYPE_UINT64:
        case GGUF_TYPE_INT64:
          numbers.push_back(static_cast<const int64_t*>(data)[i]);
          break;
        default:
          return {};
      }
    }
    return numbers;
  }

  const gguf_context* const file_;
};

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Selects the tensors of experts, their biases and scales included, and of routers.
bool IsWanted(std::string_view name) {
  return name.find("exps.") != std::string_view::npos || EndsWith(name, ".ffn_gate_inp.weight") ||
         EndsWith(name, ".ffn_gate_inp.bias") || EndsWith(name, ".exp_probs_b.bias");
}

std::string NameIn(int block, const char* tensor) {
  return "blk." + std::to_string(block) + "." + tensor;
}

bool HasFloats(const GgufTensor& tensor) {
  return tensor.type == GGML_TYPE_F32 || ggml_get_type_traits(tensor.type)->to_float != nullptr;
}

bool BeginsAsGguf(const std::string& path) {
  char magic[4] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == "GGUF";
}

}  // namespace

namespace {

int BlockOf(const char* name, std::string_view suffix) {
  int block = -1;
  char kind[16] = "";
  int end = 0;
  if (std::sscanf(name, "blk.%d.ffn_%15[a-z_]%n", &block, kind, &end) != 2) return -1;
  const std::string_view rest = name + end;
  const std::string_view what = kind;
  const bool known =
      what == "up_exps" || what == "gate_exps" || what == "down_exps" || what == "gate_up_exps";
  return known && rest == suffix ? block : -1;
}

}  // namespace

int BlockOfExperts(const char* name) { return BlockOf(name, ".weight"); }

bool AreFactorsOfExperts(const char* name) { return BlockOf(name, ".scale") >= 0; }

GgufModel GgufModel::Read(const std::string& path) {
  GgufModel model;
  model.path_ = path;
  if (!path.empty()) model.Add(path);
  return model;
}

void GgufModel::Add(const std::string& path) {
  ggml_context* context = nullptr;
  gguf_context* file = gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, &context});
  if (file == nullptr) return;
  const Values values(file);
  files_.push_back({path, static_cast<int>(values.Number("split.no", 0)),
                    static_cast<int>(values.Number("split.count", 1)),
                    values.Number("split.tensors.count", 0)});
  architecture_ = values.Text("general.architecture");
  used_ = values.Numbers(architecture_ + ".expert_used_count");
  gating_ = static_cast<int>(values.Number(architecture_ + ".expert_gating_func", kUnsaid));
  groups_ = static_cast<int>(values.Number(architecture_ + ".expert_group_count", 1));
  top_groups_ = static_cast<int>(values.Number(architecture_ + ".expert_group_used_count", 1));
  const size_t data = gguf_get_data_offset(file);
  for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
    const ggml_tensor* t = ggml_get_tensor(context, gguf_get_tensor_name(file, i));
    if (t == nullptr) continue;
    if (!IsWanted(t->name)) continue;
    if (BlockOfExperts(t->name) >= 0) expert_bytes_ += static_cast<int64_t>(ggml_nbytes(t));
    tensors_[t->name] = {path,
                         static_cast<int64_t>(data + gguf_get_tensor_offset(file, i)),
                         t->type,
                         {t->ne[0], t->ne[1], t->ne[2]},
                         static_cast<int64_t>(ggml_nbytes(t))};
  }
  gguf_free(file);
  ggml_free(context);
  struct stat status;
  if (stat(path.c_str(), &status) == 0) file_bytes_ = status.st_size;
}

// Files of a model that -hf has downloaded have no common name; their split numbers identify them.
bool GgufModel::Joins(const GgufModel& other) const {
  const File& mine = files_[0];
  const File& its = other.files_[0];
  return mine.count > 1 && mine.count == its.count && mine.tensors == its.tensors &&
         std::none_of(files_.begin(), files_.end(),
                      [&](const File& file) { return file.number == its.number; });
}

void GgufModel::Join(const GgufModel& other) {
  files_.push_back(other.files_[0]);
  if (other.files_[0].number == 0) path_ = other.path_;
  if (!other.architecture_.empty()) {
    architecture_ = other.architecture_;
    used_ = other.used_;
    gating_ = other.gating_;
    groups_ = other.groups_;
    top_groups_ = other.top_groups_;
  }
  expert_bytes_ += other.expert_bytes_;
  file_bytes_ += other.file_bytes_;
  tensors_.insert(other.tensors_.begin(), other.tensors_.end());
}

std::vector<std::shared_ptr<const GgufModel>> GgufModel::Open() {
  std::vector<std::shared_ptr<GgufModel>> models;
  std::vector<std::string> paths;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", failure)) {
    const std::string path = std::filesystem::read_symlink(entry, failure).string();
    if (failure || path.empty() || path[0] != '/' || path.rfind("/dev/", 0) == 0) continue;
    if (std::filesystem::is_regular_file(path, failure)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  for (const std::string& path : paths) {
    if (!BeginsAsGguf(path)) continue;
    GgufModel file = Read(path);
    if (file.files_.empty()) continue;
    const auto whole = std::find_if(models.begin(), models.end(),
                                    [&](const auto& model) { return model->Joins(file); });
    if (whole != models.end()) {
      (*whole)->Join(file);
    } else {
      models.push_back(std::make_shared<GgufModel>(std::move(file)));
    }
  }
  return {models.begin(), models.end()};
}

bool GgufModel::HasFile(const std::string& path) const {
  return std::any_of(files_.begin(), files_.end(),
                     [&](const File& file) { return file.path == path; });
}

const GgufTensor* GgufModel::Find(const std::string& name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

int GgufModel::UsedExperts(int block) const {
  if (used_.empty()) return 0;
  const auto at = used_by_block() ? static_cast<size_t>(block) : 0;
  return at < used_.size() ? static_cast<int>(used_[at]) : 0;
}

void GgufModel::Route(int block, moert_layer_spec* spec) const {
  spec->routing = MOERT_ROUTING_EXTERNAL;
  const GgufTensor* router = Find(NameIn(block, "ffn_gate_inp.weight"));
  if (router == nullptr || router->ne[0] != spec->hidden || router->ne[1] != spec->num_experts ||
      !HasFloats(*router)) {
    return;
  }
  const bool selection_bias = Find(NameIn(block, "exp_probs_b.bias")) != nullptr;
  int gating = gating_;
  if (gating == kUnsaid) {  // what llama.cpp's builders of these architectures say
    gating = selection_bias ? kSigmoid : architecture_ == "gpt-oss" ? kTopKSoftmax : kSoftmax;
  }
  switch (gating) {
    case kSoftmax:
      spec->routing = MOERT_ROUTING_SOFTMAX_TOPK;
      break;
    case kSigmoid:
      spec->routing = MOERT_ROUTING_SIGMOID_GROUPED;
      break;
    case kTopKSoftmax:
      spec->routing = MOERT_ROUTING_TOPK_SOFTMAX;
      break;
    case kSqrtSoftplus:
      spec->routing = MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED;
      break;
    default:
      return;
  }
  if (architecture_ == "llama4") spec->routing = MOERT_ROUTING_TOPK_SIGMOID;
  spec->logit_bias = Find(NameIn(block, "ffn_gate_inp.bias")) != nullptr ? 1 : 0;
  if (spec->routing == MOERT_ROUTING_TOPK_SOFTMAX || spec->routing == MOERT_ROUTING_TOPK_SIGMOID) {
    return;
  }
  spec->selection_bias = selection_bias ? 1 : 0;
  const bool grouped = groups_ > 1 && top_groups_ >= 1 && top_groups_ <= groups_ &&
                       spec->num_experts % groups_ == 0 &&
                       spec->num_experts / groups_ * top_groups_ >= spec->top_k;
  if (!grouped) return;
  spec->num_groups = groups_;
  spec->top_groups = top_groups_;
}

bool GgufModel::ReadRouter(int block, int32_t part, float* out) const {
  const char* const name = part == MOERT_PART_ROUTER           ? "ffn_gate_inp.weight"
                           : part == MOERT_PART_SELECTION_BIAS ? "exp_probs_b.bias"
                           : part == MOERT_PART_LOGIT_BIAS     ? "ffn_gate_inp.bias"
                                                               : "";
  const GgufTensor* tensor = Find(NameIn(block, name));
  if (tensor == nullptr) return false;
  std::vector<char> bytes(static_cast<size_t>(tensor->bytes));
  std::ifstream file(tensor->path, std::ios::binary);
  if (!file.seekg(tensor->offset) || !file.read(bytes.data(), tensor->bytes)) return false;
  const int64_t count = tensor->ne[0] * std::max<int64_t>(1, tensor->ne[1]);
  if (tensor->type == GGML_TYPE_F32) {
    std::copy_n(reinterpret_cast<const float*>(bytes.data()), count, out);
    return true;
  }
  if (!HasFloats(*tensor)) return false;
  ggml_get_type_traits(tensor->type)->to_float(bytes.data(), out, count);
  return true;
}

}  // namespace moert_ggml
