#include "cli/run/warm.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/common/machine.h"
#include "cli/common/output.h"
#include "cli/common/text_file.h"
#include "moert/offline/calibration.h"
#include "moert/tools/env.h"
#include "util/json.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kFormat[] = "moert use counts";
constexpr util::JsonLimits kLimits = {
    .max_bytes = int64_t{64} << 20, .max_depth = 8, .max_values = 4'000'000};

absl::Status CheckShape(const std::string& path, const UseCounts& counts,
                        const MoeModelSpec& model) {
  bool fits = static_cast<int>(counts.size()) == model.num_layers();
  for (size_t l = 0; fits && l < counts.size(); ++l) {
    fits = static_cast<int>(counts[l].size()) == model.layers[l].num_experts;
  }
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError(fmt::format("{}: counts of another model", path));
}

}  // namespace

UseCounter::UseCounter(const MoeModelSpec& model, std::shared_ptr<TraceSink> next)
    : next_(std::move(next)) {
  for (const MoeLayerSpec& layer : model.layers) {
    counts_.emplace_back(static_cast<size_t>(layer.num_experts), 0);
  }
}

void UseCounter::OnCall(const TraceCall& call) {
  std::vector<int64_t>& layer = counts_[static_cast<size_t>(call.layer)];
  for (const int32_t expert : call.ids) {
    if (expert >= 0 && expert < static_cast<int64_t>(layer.size())) {
      ++layer[static_cast<size_t>(expert)];
    }
  }
  if (next_ != nullptr) next_->OnCall(call);
}

void UseCounter::OnSpan(const TimelineSpan& span) {
  if (next_ != nullptr) next_->OnSpan(span);
}

std::string UseCountsPath(const std::string& source, bool is_pack, const std::string& cache) {
  std::error_code ec;
  std::string path = std::filesystem::weakly_canonical(source, ec).string();
  if (ec || path.empty()) return "";
  if (is_pack) return path + ".use.json";
  const std::string folder = CacheFolder(cache);
  if (folder.empty() || !std::filesystem::is_directory(folder, ec)) return "";
  uint64_t hash = 14695981039346656037u;  // FNV-1a: a name that is the same tomorrow
  for (const char c : path) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return fmt::format("{}/{:016x}.use.json", folder, hash);
}

absl::StatusOr<UseCounts> ReadUseCounts(const std::string& path, const MoeModelSpec& model) {
  std::error_code ec;
  if (path.empty() || !std::filesystem::exists(path, ec)) return absl::NotFoundError(path);
  MOERT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kLimits.max_bytes));
  MOERT_ASSIGN_OR_RETURN(const nlohmann::json root, util::ParseJsonObject(text, path, kLimits));
  try {
    if (root.at("format") != kFormat) throw std::runtime_error("not a file of use counts");
    UseCounts counts = root.at("counts").get<UseCounts>();
    MOERT_RETURN_IF_ERROR(CheckShape(path, counts, model));
    return counts;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, error.what()));
  }
}

absl::StatusOr<UseCounts> CalibratedCounts(const std::string& path, const MoeModelSpec& model) {
  MOERT_ASSIGN_OR_RETURN(const Calibration calibration, ReadCalibration(path, Env::Default()));
  UseCounts counts;
  for (const LayerCalibration& layer : calibration.layers) counts.push_back(layer.selections);
  MOERT_RETURN_IF_ERROR(CheckShape(path, counts, model));
  return counts;
}

absl::Status WriteUseCounts(const std::string& path, const UseCounts& counts) {
  const std::string part = path + ".tmp";
  const nlohmann::json root = {{"format", kFormat}, {"counts", counts}};
  MOERT_RETURN_IF_ERROR(WriteOutput(part, root.dump() + "\n"));
  std::error_code ec;
  std::filesystem::rename(part, path, ec);
  return ec ? absl::UnavailableError(fmt::format("{}: {}", path, ec.message())) : absl::OkStatus();
}

}  // namespace moert::cli
