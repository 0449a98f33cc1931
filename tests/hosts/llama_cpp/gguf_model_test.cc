#include "gguf_model.h"

#include <fcntl.h>
#include <gguf.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.h"

namespace moert_ggml {
namespace {

constexpr int64_t kHidden = 32, kExperts = 8;

/// A folder that goes.
struct Folder {
  Folder() {
    char name[] = "/tmp/moert-gguf-XXXXXX";
    path = std::filesystem::canonical(mkdtemp(name)).string();
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

using Fill = std::function<void(gguf_context*)>;

/// A GGUF file with F32 tensors of zeros, [hidden, experts] or, where `bias`, [experts].
void Write(const std::string& path, const std::vector<std::string>& matrices,
           const std::vector<std::string>& biases, const Fill& fill) {
  ggml_context* tensors = ggml_init({1 << 20, nullptr, /*no_alloc=*/false});
  gguf_context* file = gguf_init_empty();
  fill(file);
  const auto add = [&](const std::string& name, ggml_tensor* t) {
    ggml_set_name(t, name.c_str());
    ggml_set_zero(t);
    gguf_add_tensor(file, t);
  };
  for (const std::string& name : matrices) {
    add(name, ggml_new_tensor_2d(tensors, GGML_TYPE_F32, kHidden, kExperts));
  }
  for (const std::string& name : biases) {
    add(name, ggml_new_tensor_1d(tensors, GGML_TYPE_F32, kExperts));
  }
  REQUIRE(gguf_write_to_file(file, path.c_str(), /*only_meta=*/false));
  gguf_free(file);
  ggml_free(tensors);
}

Fill Of(
    const char* architecture, const Fill& more = [](gguf_context*) {}) {
  return [=](gguf_context* file) {
    gguf_set_val_str(file, "general.architecture", architecture);
    more(file);
  };
}

moert_layer_spec Routed(const GgufModel& model, int block = 0) {
  moert_layer_spec spec = {};
  spec.hidden = kHidden;
  spec.num_experts = kExperts;
  spec.top_k = 2;
  spec.num_groups = spec.top_groups = 1;
  model.Route(block, &spec);
  return spec;
}

const std::vector<std::string> kRouter = {"blk.0.ffn_gate_inp.weight"};

TEST_CASE("how a router chooses is what its model says, or its architecture") {
  const Folder folder;
  const std::string path = folder.path + "/model.gguf";
  Write(path, kRouter, {}, Of("qwen3moe"));
  CHECK(Routed(GgufModel::Read(path)).routing == MOERT_ROUTING_SOFTMAX_TOPK);
  CHECK(Routed(GgufModel::Read(path), 1).routing == MOERT_ROUTING_EXTERNAL);  // has none

  Write(path, kRouter, {"blk.0.ffn_gate_inp.bias"}, Of("gpt-oss"));
  moert_layer_spec spec = Routed(GgufModel::Read(path));
  CHECK(spec.routing == MOERT_ROUTING_TOPK_SOFTMAX);
  CHECK(spec.logit_bias == 1);

  Write(path, kRouter, {"blk.0.exp_probs_b.bias"}, Of("deepseek2", [](gguf_context* file) {
          gguf_set_val_u32(file, "deepseek2.expert_group_count", 4);
          gguf_set_val_u32(file, "deepseek2.expert_group_used_count", 2);
        }));
  spec = Routed(GgufModel::Read(path));
  CHECK(spec.routing == MOERT_ROUTING_SIGMOID_GROUPED);
  CHECK(spec.selection_bias == 1);
  CHECK(spec.num_groups == 4);
  CHECK(spec.top_groups == 2);
  float bias[kExperts] = {1};
  CHECK(GgufModel::Read(path).ReadRouter(0, MOERT_PART_SELECTION_BIAS, bias));
  CHECK(bias[0] == 0);
  CHECK(!GgufModel::Read(path).ReadRouter(0, MOERT_PART_LOGIT_BIAS, bias));

  for (const auto& [number, kind] : {std::pair{1, MOERT_ROUTING_SOFTMAX_TOPK},
                                     {2, MOERT_ROUTING_SIGMOID_GROUPED},
                                     {3, MOERT_ROUTING_TOPK_SOFTMAX},
                                     {4, MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED},
                                     {5, MOERT_ROUTING_EXTERNAL}}) {
    Write(path, kRouter, {}, Of("glm", [n = number](gguf_context* file) {
            gguf_set_val_u32(file, "glm.expert_gating_func", static_cast<uint32_t>(n));
          }));
    CHECK(Routed(GgufModel::Read(path)).routing == kind);
  }
}

TEST_CASE("experts a token uses are one number or one a block") {
  const Folder folder;
  const std::string path = folder.path + "/model.gguf";
  Write(path, {}, {},
        Of("a", [](gguf_context* f) { gguf_set_val_u32(f, "a.expert_used_count", 6); }));
  CHECK(GgufModel::Read(path).UsedExperts(3) == 6);
  CHECK(!GgufModel::Read(path).used_by_block());
  Write(path, {}, {}, Of("a", [](gguf_context* file) {
          const uint32_t used[] = {4, 8};
          gguf_set_arr_data(file, "a.expert_used_count", GGUF_TYPE_UINT32, used, 2);
        }));
  const GgufModel model = GgufModel::Read(path);
  CHECK(model.used_by_block());
  CHECK(model.UsedExperts(1) == 8);
  CHECK(model.UsedExperts(2) == 0);
}

/// A file that the process has open.
struct OpenFile {
  explicit OpenFile(const std::string& path) : descriptor(open(path.c_str(), O_RDONLY)) {}
  ~OpenFile() { close(descriptor); }
  const int descriptor;
};

TEST_CASE("open files of one model are one, whatever their names; others are others") {
  const Folder folder;
  const auto part = [](uint16_t number, const Fill& more) {
    return [=](gguf_context* file) {
      gguf_set_val_u16(file, "split.no", number);
      gguf_set_val_u16(file, "split.count", 2);
      gguf_set_val_i32(file, "split.tensors.count", 1);
      more(file);
    };
  };
  const std::string first = folder.path + "/f00d", second = folder.path + "/beef",
                    other = folder.path + "/other.gguf";
  Write(first, {}, {}, part(0, Of("gpt-oss")));
  Write(second, kRouter, {}, part(1, [](gguf_context*) {}));
  Write(other, {"blk.0.ffn_up_exps.weight"}, {}, Of("llama"));
  const OpenFile a(first), b(second), c(other);
  const std::vector<std::shared_ptr<const GgufModel>> models = GgufModel::Open();
  REQUIRE(models.size() == 2);
  const GgufModel& split = *(models[0]->HasFile(first) ? models[0] : models[1]);
  const GgufModel& whole = *(models[0]->HasFile(first) ? models[1] : models[0]);
  CHECK(split.HasFile(second));
  CHECK(!split.HasFile(other));
  CHECK(split.path() == first);
  CHECK(Routed(split).routing == MOERT_ROUTING_TOPK_SOFTMAX);
  CHECK(whole.path() == other);
  CHECK(whole.expert_bytes() == 4 * kHidden * kExperts);
}

TEST_CASE("what is no GGUF has nothing") {
  const Folder folder;
  const std::string path = folder.path + "/none";
  CHECK(GgufModel::Read(path).path() == path);
  CHECK(!GgufModel::Read(path).HasFile(path));
  CHECK(GgufModel::Read("").UsedExperts(0) == 0);
}

}  // namespace
}  // namespace moert_ggml
