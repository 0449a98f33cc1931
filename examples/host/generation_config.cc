#include "host/generation_config.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "moert/tools/env.h"
#include "util/json.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kBuffered));
  if (file->size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes, at most {}", path, file->size(), kMaxBytes));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  MOERT_RETURN_IF_ERROR(file->Read(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  return text;
}

}  // namespace

absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& model_dir) {
  GenerationConfig config;
  const std::string path = model_dir + "/generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return config;  // a model that is a file has none either
  MOERT_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
  util::JsonLimits limits;
  limits.max_bytes = kMaxBytes;
  MOERT_ASSIGN_OR_RETURN(const nlohmann::json json, util::ParseJsonObject(text, path, limits));
  config.found = true;
  const auto number = [&](const char* key, double* value) -> absl::Status {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) return absl::OkStatus();
    if (!it->is_number() || !std::isfinite(it->get<double>())) {
      return absl::InvalidArgumentError(fmt::format("{}: {}: legal is a number", path, key));
    }
    *value = it->get<double>();
    return absl::OkStatus();
  };
  const auto sample = json.find("do_sample");
  if (sample == json.end() || !sample->is_boolean() || !sample->get<bool>()) return config;
  SamplingOptions& s = config.sampling;
  double top_k = 0;
  s.temperature = 1;
  MOERT_RETURN_IF_ERROR(number("temperature", &s.temperature));
  MOERT_RETURN_IF_ERROR(number("top_p", &s.top_p));
  MOERT_RETURN_IF_ERROR(number("min_p", &s.min_p));
  MOERT_RETURN_IF_ERROR(number("repetition_penalty", &s.repetition_penalty));
  MOERT_RETURN_IF_ERROR(number("top_k", &top_k));
  config.top_k = static_cast<int64_t>(std::fmin(std::fmax(top_k, 0), 1e9));
  const absl::Status legal = s.Validate();
  if (legal.ok()) return config;
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, std::string(legal.message())));
}

}  // namespace moert::host
