// Every form of quantized weights against values that an independent script unpacked
// (tests/data/quantized): exact, as codes and in records. And what damaged files are told.
#include "checkpoint/quantized_weights.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/source/expert_source.h"
#include "quant/packing.h"
#include "support/catch.h"
#include "support/quantized_fixture.h"
#include "support/record_buffer.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::EditCheckpoint;
using test::EditedRecords;
using test::EditTensor;
using test::QuantizedConfig;
using test::QuantizedDir;
using test::RecordBuffer;
using test::RecordsWith;
using test::TempDir;

struct Form {
  const char* name;
  const char* scheme;
  const char* last_expert = scheme;
};
const Form kForms[] = {
    {"gptq_g128", "w4a16_g128_f16"},
    {"gptq_g32_zeros", "w4a16_g32_zp"},
    {"gptq_g64_zeros", "w4a16_g64_zp_f16"},
    {"awq_g128", "w4a16_g128_zp_f16"},
    {"packed_g32", "w4a16_g32"},
    {"packed_g128_zeros", "w4a16_g128_zp_f16"},
    {"int8", "w8a8"},
    {"int8_g128", "w8a16_g128"},
    {"nvfp4_packed", "nvfp4"},
    {"nvfp4_modelopt", "nvfp4"},
    {"fp8_blocks", "fp8_b128"},
    {"mxfp4", "mxfp4"},
    {"gptq_channel", "w4a16_g128_zp_f16"},
    {"packed_channel", "w4a16_g128_zp"},
    {"auto_round", "w4a16_g64_zp_f16"},
    {"fp8_channel", "fp8_b128"},
    {"fp8_tensor", "fp8_b128"},
    {"gptq_some", "w4a16_g128_f16", "bf16"},
    {"modelopt_mixed", "nvfp4", "fp8_b128"},
    {"fp4_rows", "mxfp4", "fp8_b128"},
};

struct Expected {
  std::vector<int32_t> places;  // [n, 4]: expert, projection, row, channel
  std::vector<float> values;
};

Expected ReadExpected(const std::string& name) {
  const auto file = Checkpoint::Open(QuantizedDir(name) + "/expected.safetensors");
  REQUIRE_OK(file.status());
  const auto n = (*(*file)->Get("values"))->shape[0];
  return {*(*file)->ReadI32("places", {n, 4}), *(*file)->ReadF32("values", {n})};
}

// How many values differ, of matrices [expert][projection] widened.
int Differences(const Expected& expected, const std::vector<std::vector<float>>& matrices,
                const MoeLayerSpec& layer) {
  int differences = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const int32_t* const at = expected.places.data() + 4 * i;
    const int64_t k = at[1] == 2 ? layer.intermediate : layer.hidden;
    const std::vector<float>& m = matrices[static_cast<size_t>(at[0] * 3 + at[1])];
    differences += m[static_cast<size_t>(at[2] * k + at[3])] != expected.values[i];
  }
  return differences;
}

TEST_CASE("every form is read without rounding") {
  const Form form = GENERATE(from_range(std::begin(kForms), std::end(kForms)));
  INFO(form.name);
  const HfConfig config = QuantizedConfig(QuantizedDir(form.name));
  const auto checkpoint = Checkpoint::Open(QuantizedDir(form.name));
  REQUIRE_OK(checkpoint.status());
  const auto experts = CheckpointExperts::Create(checkpoint->get(), &config);
  REQUIRE_OK(experts.status());
  const MoeLayerSpec& layer = config.moe.layers[0];
  CHECK((*experts)->stored(0, 0) == ExpertFormat::Uniform(*Scheme::Parse(form.scheme)));
  CHECK((*experts)->stored(0, 1) == ExpertFormat::Uniform(*Scheme::Parse(form.last_expert)));
  const Expected expected = ReadExpected(form.name);
  CHECK(expected.values.size() == 2400);

  std::vector<std::vector<float>> widened, unpacked;
  for (int e = 0; e < layer.num_experts; ++e) {
    const auto layout = ExpertRecordLayout(layer, (*experts)->stored(0, e));
    REQUIRE_OK(layout.status());
    for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      widened.emplace_back();
      REQUIRE_OK((*experts)->ReadWidened(0, e, p, &widened.back()));
    }
    RecordBuffer record(layout->bytes);
    REQUIRE_OK((*experts)->ReadRecord(0, e, *layout, record.data()));
    for (const MatrixLayout* m : {&layout->gate, &layout->up, &layout->down}) {
      unpacked.emplace_back();
      REQUIRE_OK(UnpackMatrix(*m, record.data(), &unpacked.back()));
    }
  }
  CHECK(Differences(expected, widened, layer) == 0);
  CHECK(Differences(expected, unpacked, layer) == 0);
}

TEST_CASE("gpt-oss: biases of gate and up take turns") {
  const HfConfig config = QuantizedConfig(QuantizedDir("mxfp4"));
  const auto checkpoint = Checkpoint::Open(QuantizedDir("mxfp4"));
  REQUIRE_OK(checkpoint.status());
  const auto experts = CheckpointExperts::Create(checkpoint->get(), &config);
  REQUIRE_OK(experts.status());
  const auto layout = ExpertRecordLayout(config.moe.layers[0], (*experts)->stored(0, 0));
  REQUIRE_OK(layout.status());
  RecordBuffer record(layout->bytes);
  REQUIRE_OK((*experts)->ReadRecord(0, 1, *layout, record.data()));
  const auto both = (*checkpoint)->ReadF32("model.layers.0.mlp.experts.gate_up_proj_bias", {2, 64});
  const auto down = (*checkpoint)->ReadF32("model.layers.0.mlp.experts.down_proj_bias", {2, 256});
  REQUIRE_OK(both.status());
  const auto bias = [&](const MatrixLayout& m, int64_t row) {
    return reinterpret_cast<const float*>(record.data() + m.bias_offset)[row];
  };
  for (int64_t r = 0; r < 32; ++r) {
    CHECK(bias(layout->gate, r) == (*both)[static_cast<size_t>(64 + 2 * r)]);
    CHECK(bias(layout->up, r) == (*both)[static_cast<size_t>(64 + 2 * r + 1)]);
  }
  for (int64_t r = 0; r < 256; ++r) {
    CHECK(bias(layout->down, r) == (*down)[static_cast<size_t>(256 + r)]);
  }
}

/// Compares an expert's up of a source with values that another program unpacked.
void CheckUp(const std::string& name, const ExpertSource& source, int expert) {
  const RecordLayout& layout = source.layout(0, expert, 0);
  RecordBuffer record(layout.bytes);
  REQUIRE_OK(source.ReadRecord(0, expert, 0, record.span()));
  std::vector<float> up;
  REQUIRE_OK(UnpackMatrix(layout.up, record.data(), &up));
  const Expected expected = ReadExpected(name);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const int32_t* const at = expected.places.data() + 4 * i;
    if (at[0] != expert || at[1] != 1) continue;
    CHECK(up[static_cast<size_t>(at[2] * 256 + at[3])] == expected.values[i]);
  }
}

TEST_CASE("OpenModel keeps the file's scheme, or widens it") {
  for (const char* name : {"awq_g128", "nvfp4_packed", "fp8_blocks"}) {
    INFO(name);
    TempDir cache;
    OpenModelOptions options;
    options.cache_dir = cache.path();
    const auto kept = OpenModel(QuantizedDir(name), options);
    REQUIRE_OK(kept.status());
    options.widen = true;
    const auto wide = OpenModel(QuantizedDir(name), options);
    REQUIRE_OK(wide.status());
    CHECK((*wide)->version_name(0) == "bf16");
    CHECK((*kept)->version_name(0) != "bf16");
    CheckUp(name, **kept, 1);
  }
}

TEST_CASE("experts of one layer in two schemes, in place and in a pack") {
  for (const char* name : {"gptq_some", "modelopt_mixed", "fp4_rows"}) {
    for (const OpenMode mode : {OpenMode::kInPlace, OpenMode::kPack}) {
      INFO(name);
      TempDir cache;
      OpenModelOptions options;
      options.cache_dir = cache.path();
      options.mode = mode;
      const auto source = OpenModel(QuantizedDir(name), options);
      REQUIRE_OK(source.status());
      CHECK((*source)->version_name(0) == "stored");
      CHECK((*source)->layout(0, 0, 0).bytes != (*source)->layout(0, 1, 0).bytes);
      CheckUp(name, **source, 0);
      CheckUp(name, **source, 1);
    }
  }
}

template <typename Edit>
std::string ErrorOf(const std::string& name, const Edit& edit) {
  return std::string(EditedRecords(name, edit).status().message());
}

/// Zeros of GPTQ, eight a word.
void EachZeroWord(EditCheckpoint* tensors, const std::function<uint32_t(uint32_t)>& change) {
  for (auto& [name, tensor] : *tensors) {
    if (!absl::EndsWith(name, ".qzeros")) continue;
    for (size_t i = 0; i < tensor.bytes.size(); i += 4) {
      uint32_t word;
      std::memcpy(&word, &tensor.bytes[i], 4);
      word = change(word);
      std::memcpy(&tensor.bytes[i], &word, 4);
    }
  }
}

TEST_CASE("zeros of GPTQ version 1 are what version 2 says, a zero of 0 included") {
  // As GPTQModel converts a file: one from each code of a word, all of them in one subtraction.
  const auto with_zeros = [](uint32_t word) { return word & 0x00f0ff0f; };
  const auto two =
      EditedRecords("gptq_g32_zeros", [&](EditCheckpoint* t) { EachZeroWord(t, with_zeros); });
  REQUIRE_OK(two.status());
  const auto one = RecordsWith("gptq_g32_zeros", [&](EditCheckpoint* t, nlohmann::json* config) {
    EachZeroWord(t, [&](uint32_t word) { return with_zeros(word) - 0x11111111; });
    (*config)["quantization_config"]["checkpoint_format"] = "gptq";
  });
  REQUIRE_OK(one.status());
  CHECK(*one == *two);
}

TEST_CASE("symmetric GPTQ under the label of version 1 has zeros of 7, or of 8 throughout") {
  const auto seven = EditedRecords("gptq_g128", [](EditCheckpoint*) {});
  REQUIRE_OK(seven.status());
  const auto eight = EditedRecords(
      "gptq_g128", [](EditCheckpoint* t) { EachZeroWord(t, [](uint32_t) { return 0x88888888; }); });
  REQUIRE_OK(eight.status());
  CHECK(*eight == *seven);
  for (const uint32_t word : {0x99999999u, 0x77777778u, 0x66666666u}) {
    CHECK_THAT(ErrorOf("gptq_g128",
                       [&](EditCheckpoint* t) { EachZeroWord(t, [&](uint32_t) { return word; }); }),
               Catch::Contains("says that weights are symmetric"));
  }
}

const std::string kGate0 = "model.layers.0.mlp.experts.0.gate_proj.";

TEST_CASE("damaged quantized files name the tensor") {
  struct Case {
    const char* form;
    std::string tensor;
    void (*edit)(EditTensor* t);
    const char* message;
  };
  const auto poke = [](EditTensor* t) { t->bytes[0] = '\x7f'; };
  const auto flat = [](EditTensor* t) {
    int64_t n = 1;
    for (const int64_t d : t->shape) n *= d;
    t->shape = {n};
  };
  const auto nan = [](EditTensor* t) { t->bytes.replace(0, 2, std::string("\xff\xff")); };
  const auto as_u8 = [](EditTensor* t) {
    t->dtype = "U8";
    t->shape.back() *= 4;
  };
  const std::string mx = "model.layers.0.mlp.experts.gate_up_proj_";
  const std::string w1 = "layers.0.ffn.experts.0.w1.";
  const Case cases[] = {
      {"gptq_g128", kGate0 + "qweight", flat, "gptq int4 weights take i32 [32, 32]"},
      {"gptq_g128", kGate0 + "qweight", as_u8, "gptq int4 weights take i32"},
      {"gptq_g128", kGate0 + "qzeros", poke, "says that weights are symmetric"},
      {"gptq_g128", kGate0 + "scales", nan, "a scale is not finite"},
      {"gptq_g64_zeros", kGate0 + "g_idx", [](EditTensor* t) { t->bytes[0] = 1; }, "act-order"},
      {"gptq_g64_zeros", kGate0 + "g_idx", flat, ""},
      {"awq_g128", kGate0 + "qzeros", flat, "awq int4 weights take i32 [2, 4]"},
      {"awq_g128", kGate0 + "scales", nan, "a scale is not finite"},
      {"packed_g32", kGate0 + "weight_scale", flat,
       "compressed-tensors int4 weights take f16 or bf16"},
      {"packed_g128_zeros", kGate0 + "weight_zero_point", flat, "take i32 [4, 2]"},
      {"int8", kGate0 + "weight", flat, "compressed-tensors int8 weights take i8 [32, 256]"},
      {"nvfp4_packed", kGate0 + "weight_scale", poke, "a scale is not finite"},
      {"nvfp4_packed", kGate0 + "weight_global_scale",
       [](EditTensor* t) { t->bytes.assign(4, '\0'); }, "legal is a finite number above 0"},
      {"nvfp4_modelopt", kGate0 + "weight", flat, "modelopt nvfp4 weights take u8 [32, 128]"},
      {"fp8_blocks", kGate0 + "weight", poke, "is no number"},
      {"fp8_blocks", kGate0 + "weight_scale_inv", flat, "legal for the scales of"},
      {"fp8_channel", kGate0 + "weight_scale",
       [](EditTensor* t) {
         t->shape = {1, 16, 2};
       },
       "one a row, or one"},
      {"fp8_channel", kGate0 + "weight_scale", nan, "a scale is not finite"},
      {"fp8_tensor", kGate0 + "weight_scale", [](EditTensor* t) { t->bytes.assign(4, '\xff'); },
       "a scale is not finite"},
      {"gptq_channel", kGate0 + "scales", flat, "gptq int4 weights take f16 or bf16 [1, 32]"},
      {"gptq_channel", kGate0 + "g_idx", [](EditTensor* t) { t->bytes[0] = 1; },
       "channel 0 is in group 1 of 1"},
      {"packed_channel", kGate0 + "weight_zero_point", flat, "take i32 [4, 1]"},
      {"gptq_some", "model.layers.0.mlp.experts.1.gate_proj.weight", flat,
       "config.json implies [32, 256]"},
      {"mxfp4", mx + "blocks", flat, "mxfp4 weights take u8 [2, 64, 8, 16]"},
      {"mxfp4", mx + "scales", [](EditTensor* t) { t->bytes[0] = '\xfe'; }, "overflow bf16"},
      {"mxfp4", mx + "bias", flat, "its shape is [128]"},
      {"fp4_rows", w1 + "weight", flat, "mxfp4 and fp8 weights take i8 or u8 [32, 128]"},
      {"fp4_rows", w1 + "scale", flat, "mxfp4 and fp8 weights take f8_e8m0 [32, 8]"},
      {"fp4_rows", w1 + "scale", [](EditTensor* t) { t->bytes[0] = '\xfe'; }, "overflow bf16"},
      {"fp4_rows", "layers.0.ffn.experts.1.w1.scale", flat, "legal for the scales of"},
  };
  for (const Case& c : cases) {
    INFO(c.form << " " << c.tensor << ": " << c.message);
    const std::string error = ErrorOf(c.form, [&](EditCheckpoint* tensors) {
      REQUIRE(tensors->count(c.tensor) == 1);
      c.edit(&(*tensors)[c.tensor]);
    });
    CHECK(error.find(c.message) != std::string::npos);
    CHECK((*c.message == '\0' ||
           error.find(c.tensor.substr(0, c.tensor.rfind('.'))) != std::string::npos));
    if (*c.message == '\0') CHECK(error.empty());
  }
  const std::string missing =
      ErrorOf("packed_g32", [](EditCheckpoint* t) { t->erase(kGate0 + "weight_scale"); });
  CHECK(missing.find("weight_scale\" is missing") != std::string::npos);
}

}  // namespace
}  // namespace moert
