// One form of quantized weights as different programs describe it: quantization_config of
// config.json, and hf_quant_config.json beside it.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "support/catch.h"
#include "support/quantized_fixture.h"

namespace moert {
namespace {

using nlohmann::json;
using test::EditCheckpoint;
using test::QuantizedDir;
using test::RecordsIn;
using test::RecordsWith;
using test::WithoutQuantization;

std::vector<std::string> Names(const EditCheckpoint& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST_CASE("the same tensors as other programs describe them") {
  const json round = {{"quant_method", "intel/auto-round"},
                      {"bits", 4},
                      {"data_type", "int"},
                      {"autoround_version", "0.5.1"},
                      {"seqlen", 512}};
  const auto described = [](json quantization) {
    return [quantization](EditCheckpoint*, json* config) {
      (*config)["quantization_config"] = quantization;
    };
  };
  const auto with = [](json a, const json& b) {
    a.update(b);
    return a;
  };
  const json gptq = with(round, {{"group_size", 64}, {"sym", false}});
  const json awq =
      with(round, {{"group_size", 128}, {"sym", true}, {"packing_format", "auto_round:auto_awq"}});
  // GPTQModel's fields.
  const json model = {
      {"quant_method", "gptq"}, {"method", "gptq"},      {"format", "gptq_v2"}, {"bits", 4},
      {"group_size", 32},       {"sym", false},          {"desc_act", false},   {"lm_head", false},
      {"pack_dtype", "int32"},  {"meta", {{"mse", 0.0}}}};
  const json model_awq = with(
      model, {{"quant_method", "awq"}, {"method", "awq"}, {"format", "gemm"}, {"group_size", 128}});
  const json v2 =
      with(round, {{"group_size", 32}, {"sym", false}, {"packing_format", "auto_round:gptqmodel"}});
  const json blocks = {{"quant_method", "compressed-tensors"},
                       {"format", "float-quantized"},
                       {"config_groups",
                        {{"group_0",
                          {{"targets", {"Linear"}},
                           {"weights",
                            {{"num_bits", 8},
                             {"type", "float"},
                             {"strategy", "block"},
                             {"block_structure", {128, 128}}}}}}}}};
  const auto renamed = [&](EditCheckpoint* tensors, json* config) {
    (*config)["quantization_config"] = blocks;
    for (const std::string& name : Names(*tensors)) {
      if (!absl::EndsWith(name, "_inv")) continue;
      (*tensors)[name.substr(0, name.size() - 4)] = std::move((*tensors)[name]);
      tensors->erase(name);
    }
  };
  // The fixture with its quantization_config moved to ModelOpt's own file.
  const auto alone = [](const char* name) {
    const json config = json::parse(test::ReadFile(QuantizedDir(name) + "/config.json"));
    json own = config["quantization_config"];
    own.erase("quant_method");
    return RecordsWith(name, WithoutQuantization,
                       {{"producer", {{"name", "modelopt"}}}, {"quantization", own}});
  };
  struct Case {
    const char* name;
    absl::StatusOr<std::vector<std::string>> records;
  };
  const Case cases[] = {
      {"gptq_g64_zeros", RecordsWith("gptq_g64_zeros", described(gptq))},
      {"gptq_g32_zeros", RecordsWith("gptq_g32_zeros", described(model))},
      {"awq_g128", RecordsWith("awq_g128", described(model_awq))},
      {"gptq_g32_zeros", RecordsWith("gptq_g32_zeros", described(v2))},
      {"awq_g128", RecordsWith("awq_g128", described(awq))},
      {"fp8_blocks", RecordsWith("fp8_blocks", renamed)},
      {"nvfp4_modelopt", alone("nvfp4_modelopt")},
      {"modelopt_mixed", alone("modelopt_mixed")},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    REQUIRE_OK(c.records.status());
    const auto original = RecordsIn(QuantizedDir(c.name));
    REQUIRE_OK(original.status());
    CHECK(*c.records == *original);
  }
}

TEST_CASE("hf_quant_config.json is refused by name of file and field") {
  struct Case {
    json quantization;
    const char* message;
  };
  const json layer = {{"quant_algo", "W4A8_AWQ"}};
  const Case cases[] = {
      {7, "hf_quant_config.json: quantization is not an object"},
      {{{"quant_algo", "W4A16_AWQ"}, {"group_size", 128}}, "modelopt W4A16_AWQ in groups of 128"},
      {{{"quant_algo", "NVFP4"}, {"group_size", 32}}, "modelopt NVFP4 in groups of 32"},
      {{{"quant_algo", "MIXED_PRECISION"}}, "MIXED_PRECISION without quantized_layers"},
      {{{"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", {{"a", layer}}}},
       "modelopt W4A8_AWQ in groups of 16"},
      {{{"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", {{"a", 1}}}},
       "quantized_layers: legal are objects"},
      {{{"quant_algo", "FP8"}, {"rotation_bits", 1}}, "rotation_bits is 1"},
  };
  for (const Case& c : cases) {
    INFO(c.message);
    const auto records =
        RecordsWith("nvfp4_modelopt", WithoutQuantization, {{"quantization", c.quantization}});
    CHECK(absl::IsInvalidArgument(records.status()));
    CHECK_THAT(std::string(records.status().message()),
               Catch::Contains("hf_quant_config.json") && Catch::Contains(c.message));
  }
}

}  // namespace
}  // namespace moert
