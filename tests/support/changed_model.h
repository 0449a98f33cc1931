// A checkpoint of tests/data/architectures with other fields in its config.json.
#ifndef MOERT_TESTS_SUPPORT_CHANGED_MODEL_H_
#define MOERT_TESTS_SUPPORT_CHANGED_MODEL_H_

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/architecture_fixture.h"
#include "support/temp_dir.h"

namespace moert::test {

inline nlohmann::json ConfigFieldsOf(const std::string& name) {
  return nlohmann::json::parse(ReadFile(ArchitectureDir(name) + "/config.json"));
}

inline void CopyModelWith(const std::string& name, const nlohmann::json& fields,
                          const TempDir& dir) {
  WriteFile(dir / "config.json", fields.dump());
  std::filesystem::copy_file(ArchitectureDir(name) + "/model.safetensors",
                             dir / "model.safetensors");
}

/// How far the logits of each position are from those of the model as it is: the reference case
/// "long", one sequence at a time, on the CPU.
inline std::vector<float> DifferencesWith(const std::string& name, const nlohmann::json& fields) {
  const TempDir cache, dir;
  CopyModelWith(name, fields, dir);
  const ReferenceCase c = ReadReferenceCase(name, "long");
  EngineOptions options;
  options.threads = 1;
  options.max_tokens_per_forward = 60;
  options.activation = ActivationNumerics::kF32;
  ArchitectureRun run(dir.path(), cache.path(), options, false);
  return Differences(run.Logits(c, 1), c.logits, run.config.vocab_size);
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_CHANGED_MODEL_H_
