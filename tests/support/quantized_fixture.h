// The checkpoints of tests/data/quantized, as they are and edited.
#ifndef MOERT_TESTS_SUPPORT_QUANTIZED_FIXTURE_H_
#define MOERT_TESTS_SUPPORT_QUANTIZED_FIXTURE_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/source/expert_source.h"
#include "support/edit_checkpoint.h"
#include "support/paths.h"
#include "support/record_buffer.h"
#include "support/temp_dir.h"

namespace moert::test {

inline std::string QuantizedDir(const std::string& name) {
  return SourceDir() + "/tests/data/quantized/" + name;
}

inline absl::StatusOr<HfConfig> LoadQuantized(const std::string& dir) {
  auto config = LoadHfConfig(dir);
  if (config.ok() && config->quantization.form == StoredWeights::kMxfp4) {  // as gpt-oss has it
    config->names.interleaved = true;
    config->moe.layers[0].expert_bias = true;
  }
  return config;
}

inline HfConfig QuantizedConfig(const std::string& dir) {
  auto config = LoadQuantized(dir);
  REQUIRE_OK(config.status());
  return *std::move(config);
}

/// The records of a checkpoint's experts.
inline absl::StatusOr<std::vector<std::string>> RecordsIn(const std::string& dir) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadQuantized(dir));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(dir));
  MOERT_ASSIGN_OR_RETURN(const auto experts, CheckpointExperts::Create(checkpoint.get(), &config));
  std::vector<std::string> records;
  for (int e = 0; e < 2; ++e) {
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                           ExpertRecordLayout(config.moe.layers[0], experts->stored(0, e)));
    RecordBuffer record(layout.bytes);
    MOERT_RETURN_IF_ERROR(experts->ReadRecord(0, e, layout, record.data()));
    records.emplace_back(reinterpret_cast<const char*>(record.data()),
                         static_cast<size_t>(layout.bytes));
  }
  return records;
}

/// The same of a fixture in which `edit` changed something of tensors and configuration.
inline absl::StatusOr<std::vector<std::string>> RecordsWith(
    const std::string& name, const std::function<void(EditCheckpoint*, nlohmann::json*)>& edit,
    const nlohmann::json& hf_quant_config = {}) {
  TempDir dir;
  auto config = nlohmann::json::parse(ReadFile(QuantizedDir(name) + "/config.json"));
  EditCheckpoint tensors = ReadForEdit(QuantizedDir(name));
  edit(&tensors, &config);
  WriteFile(dir.path() + "/config.json", config.dump());
  WriteFile(dir.path() + "/model.safetensors", ToSafetensors(tensors));
  if (!hf_quant_config.is_null()) {
    WriteFile(dir.path() + "/hf_quant_config.json", hf_quant_config.dump());
  }
  return RecordsIn(dir.path());
}

inline void WithoutQuantization(EditCheckpoint*, nlohmann::json* config) {
  config->erase("quantization_config");
}

template <typename Edit>
absl::StatusOr<std::vector<std::string>> EditedRecords(const std::string& name, const Edit& edit) {
  return RecordsWith(name, [&](EditCheckpoint* t, nlohmann::json*) { edit(t); });
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_QUANTIZED_FIXTURE_H_
