// Attention stored in every quantized form gives the bits of the same attention stored as the bf16
// values of its codes. Matrices are those of the fixtures' experts (tests/data/quantized), whose
// values an independent script unpacked.
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/bf16.h"
#include "moert/offline/linear_weight.h"
#include "moert/offline/tensor_account.h"
#include "support/architecture_fixture.h"
#include "support/quantized_fixture.h"

namespace moert {
namespace {

using nlohmann::json;
using test::ArchitectureRun;
using test::EditCheckpoint;
using test::EditTensor;
using test::QuantizedDir;
using test::TempDir;

constexpr int64_t kHidden = 256, kHead = 32, kVocabulary = 32;
const std::string kLayer = "model.layers.0.";

/// Which expert's matrix stands for a part of attention; the shapes are the same.
struct Stand {
  const char* part;
  int expert;
  Projection projection;
  const char* name;
  int64_t rows, cols;
};
const Stand kStands[] = {
    {"q_proj", 0, Projection::kGate, "gate_proj", kHead, kHidden},
    {"k_proj", 0, Projection::kUp, "up_proj", kHead, kHidden},
    {"v_proj", 1, Projection::kGate, "gate_proj", kHead, kHidden},
    {"o_proj", 1, Projection::kDown, "down_proj", kHidden, kHead},
};

std::vector<std::string> Forms() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(QuantizedDir(""))) {
    const std::string name = entry.path().filename();
    // In fp4 there are experts alone.
    if (entry.is_directory() && name != "mxfp4" && name != "fp4_rows") names.push_back(name);
  }
  return names;
}

EditTensor Bf16Tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  EditTensor t{"BF16", shape, std::string(2 * values.size(), '\0')};
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = F32ToBf16(values[i]);
    std::memcpy(&t.bytes[2 * i], &bits, 2);
  }
  return t;
}

std::vector<float> Widened(const std::string& form, const Stand& stand) {
  const HfConfig config = test::QuantizedConfig(QuantizedDir(form));
  const auto checkpoint = Checkpoint::Open(QuantizedDir(form));
  REQUIRE_OK(checkpoint.status());
  const auto experts = CheckpointExperts::Create(checkpoint->get(), &config);
  REQUIRE_OK(experts.status());
  std::vector<float> values;
  REQUIRE_OK((*experts)->ReadWidened(0, stand.expert, stand.projection, &values));
  return values;
}

/// A fixture with attention, embedding and norms; quantized: attention, too.
EditCheckpoint WholeModel(const std::string& form, bool quantized) {
  EditCheckpoint model = test::ReadForEdit(QuantizedDir(form));
  for (const Stand& stand : kStands) {
    const std::string to = kLayer + "self_attn." + stand.part + ".";
    if (!quantized) {
      model[to + "weight"] = Bf16Tensor({stand.rows, stand.cols}, Widened(form, stand));
      continue;
    }
    const std::string from =
        kLayer + "mlp.experts." + std::to_string(stand.expert) + "." + stand.name + ".";
    EditCheckpoint copies;
    for (const auto& [name, tensor] : model) {
      if (absl::StartsWith(name, from)) copies[to + name.substr(from.size())] = tensor;
    }
    model.merge(copies);
  }
  std::vector<float> embedding;
  for (int i = 0; i < kVocabulary * kHidden; ++i) embedding.push_back(std::sin(0.7f * i * i));
  model["model.embed_tokens.weight"] = Bf16Tensor({kVocabulary, kHidden}, embedding);
  const auto norm = [&](const std::string& name, int64_t width) {
    model[name + ".weight"] = Bf16Tensor({width}, std::vector<float>(width, 1.0f));
  };
  norm("model.norm", kHidden);
  norm(kLayer + "input_layernorm", kHidden);
  norm(kLayer + "post_attention_layernorm", kHidden);
  norm(kLayer + "self_attn.q_norm", kHead);
  norm(kLayer + "self_attn.k_norm", kHead);
  return model;
}

void Write(const TempDir& dir, const std::string& form, const EditCheckpoint& model) {
  json config = json::parse(test::ReadFile(QuantizedDir(form) + "/config.json"));
  config.update({{"num_attention_heads", 1}, {"num_key_value_heads", 1}, {"head_dim", kHead}});
  test::WriteFile(dir / "config.json", config.dump());
  test::WriteFile(dir / "model.safetensors", test::ToSafetensors(model));
}

std::vector<float> Logits(const TempDir& dir) {
  auto source = OpenModel(dir.path(), {});
  REQUIRE_OK(source.status());
  EngineOptions options;
  options.threads = 1;
  options.activation = ActivationNumerics::kF32;
  ArchitectureRun run(dir.path(), *std::move(source), options, /*minimal=*/false);
  test::ReferenceCase reference;
  reference.tokens = {{3, 1, 4, 1, 5, 9, 2, 6}};
  reference.prefill = 5;
  return run.Logits(reference, 1);
}

TEST_CASE("attention in every quantized form") {
  for (const std::string& form : Forms()) {
    INFO(form);
    TempDir quantized, plain;
    Write(quantized, form, WholeModel(form, true));
    Write(plain, form, WholeModel(form, false));
    const std::vector<float> logits = Logits(quantized);
    CHECK(std::all_of(logits.begin(), logits.end(), [](float f) { return std::isfinite(f); }));
    CHECK(logits[0] != logits[1]);
    CHECK(logits == Logits(plain));
  }
}

TEST_CASE("fp8 whose scales are called as DeepSeek-V4's are") {
  EditCheckpoint renamed;
  for (const auto& [name, tensor] : WholeModel("fp8_blocks", true)) {
    std::string to = name;
    absl::StrReplaceAll({{"weight_scale_inv", "scale"}}, &to);
    renamed[to] = tensor;
  }
  TempDir scale, inverse;
  Write(scale, "fp8_blocks", renamed);
  Write(inverse, "fp8_blocks", WholeModel("fp8_blocks", true));
  CHECK(Logits(scale) == Logits(inverse));
}

TEST_CASE("rows of a linear layer") {
  const HfConfig config = test::QuantizedConfig(QuantizedDir("awq_g128"));
  const auto checkpoint = Checkpoint::Open(QuantizedDir("awq_g128"));
  REQUIRE_OK(checkpoint.status());
  const std::string name = kLayer + "mlp.experts.0.gate_proj";
  const auto open = [&](int64_t rows, int64_t cols) {
    return LinearWeight::Open(**checkpoint, config.quantization, name, rows, cols);
  };
  const auto weight = open(kHead, kHidden);
  REQUIRE_OK(weight.status());
  CHECK(weight->bf16());
  const std::vector<float> values = Widened("awq_g128", kStands[0]);
  std::vector<float> rows(3 * kHidden);
  std::vector<uint16_t> bits(3 * kHidden);
  REQUIRE_OK(weight->Read(7, absl::MakeSpan(rows)));
  REQUIRE_OK(weight->Read(7, absl::MakeSpan(bits)));
  for (int64_t i = 0; i < 3 * kHidden; ++i) {
    CHECK(rows[i] == RoundToBf16(values[7 * kHidden + i]));
    CHECK(bits[i] == F32ToBf16(values[7 * kHidden + i]));
  }
  CHECK(absl::IsOutOfRange(weight->Read(kHead - 2, absl::MakeSpan(rows))));
  CHECK(absl::IsOutOfRange(weight->Read(-1, absl::MakeSpan(bits))));
  CHECK(absl::IsInvalidArgument(open(kHead, kHead).status()));
  const auto router =
      LinearWeight::Open(**checkpoint, config.quantization, kLayer + "mlp.gate", 2, kHidden - 1);
  CHECK_THAT(std::string(router.status().message()),
             Catch::Contains("mlp.gate.weight\" is [2, 256], expected [2, 255]"));
}

TEST_CASE("tensors of quantized attention are used, or refused by name") {
  EditCheckpoint model = WholeModel("gptq_g128", true);
  TempDir dir;
  const auto refusal = [&] {
    Write(dir, "gptq_g128", model);
    const auto config = LoadHfConfig(dir.path());
    REQUIRE_OK(config.status());
    const auto checkpoint = Checkpoint::Open(dir.path());
    REQUIRE_OK(checkpoint.status());
    const auto pool = CreateThreadPool({.threads = 1});
    REQUIRE_OK(pool.status());
    absl::Status status = CheckTensors(**checkpoint, *config);
    if (status.ok()) {
      status = host::Decoder::Load(**checkpoint, *config, pool->get(), nullptr).status();
    }
    return std::string(status.message());
  };
  CHECK(refusal().empty());
  const std::string name = kLayer + "self_attn.k_proj.";
  const EditTensor scales = model[name + "scales"];
  model[name + "scales"].bytes.replace(0, 2, "\xff\xff");
  CHECK_THAT(refusal(), Catch::Contains(name + "scales\": a scale is not finite"));
  model[name + "scales"] = scales;
  model[name + "scales"].shape = {32, 2};
  CHECK_THAT(refusal(), Catch::Contains(name + "scales\": it is f16 [32, 2]"));
  model[name + "scales"] = scales;
  model[name + "hadamard"] = scales;
  CHECK_THAT(refusal(), Catch::Contains(name + "hadamard\": nothing reads it"));
}

}  // namespace
}  // namespace moert
