#include "moert/offline/open_as.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/exception_status.h"
#include "base/hash64.h"
#include "base/json_writer.h"
#include "base/status_macros.h"
#include "moert/tools/env.h"
#include "offline/cancelled.h"
#include "pack/expert_pack.h"
#include "pack/model_cache.h"
#include "pack/pack_manifest.h"

namespace moert {
namespace {

constexpr std::chrono::milliseconds kLook(100);

// Writes the pack, or waits for another process that is writing it.
absl::Status MakePack(const QuantizeJob& job) {
  bool told = false;
  while (true) {
    const absl::Status status = RunQuantizeJob(job);
    if (absl::IsAlreadyExists(status)) return absl::OkStatus();  // another was done meanwhile
    if (!absl::IsAborted(status)) return status;
    MOERT_RETURN_IF_ERROR(offline::CheckWanted(job.cancelled));
    if (job.log && !told) job.log(fmt::format("waiting: {}", std::string(status.message())));
    told = true;
    std::this_thread::sleep_for(kLook);
  }
}

/// A version's part of a pack's name, which is needed because two plans may have one name.
std::string CacheName(const PackVersion& plan) {
  JsonWriter text;
  WriteVersion(plan, &text);
  return fmt::format("{}-{:016x}", plan.name, Hash64(text.Take()));
}

/// A cached pack, and the checkpoint it must be made from.
struct Cached {
  std::string pack;
  std::string identity;
};

absl::StatusOr<Cached> FindOrMake(const std::string& model_dir, const OpenAsOptions& options) {
  if (options.schemes.empty() && options.plans.empty()) {
    return absl::InvalidArgumentError("no scheme is given");
  }
  if (options.method == QuantMethod::kGptq) {
    return absl::InvalidArgumentError(
        "gptq needs calibration tokens: make a pack with RunQuantizeJob (moert-pack quantize)");
  }
  std::vector<std::string> names;
  for (const Scheme& scheme : options.schemes) names.push_back(scheme.Name());
  for (const PackVersion& plan : options.plans) names.push_back(CacheName(plan));
  std::sort(names.begin(), names.end());  // the same pack whatever the order
  MOERT_ASSIGN_OR_RETURN(std::string identity, CheckpointIdentity(model_dir, Env::Default()));
  MOERT_ASSIGN_OR_RETURN(const std::string cache, CacheDirectory(options.cache_dir));
  std::string pack =
      fmt::format("{}/{}-v{}-{}-{}", cache, identity, kPackFormatVersion,
                  std::string(QuantMethodName(options.method)), fmt::join(names, "+"));
  std::error_code ec;
  if (!std::filesystem::exists(pack, ec)) {
    QuantizeJob job;
    job.versions = options.plans;
    job.model = model_dir;
    job.out = pack;
    job.schemes = options.schemes;
    job.method = options.method;
    job.threads = options.threads;
    job.owner_only = true;
    job.progress = options.progress;
    job.log = options.log;
    job.cancelled = options.cancelled;
    if (job.log) {
      job.log(
          fmt::format("quantizing {} (once; experts as they are stored need no copy)", model_dir));
    }
    MOERT_RETURN_IF_ERROR(MakePack(job));
  }
  return Cached{std::move(pack), std::move(identity)};
}

}  // namespace

absl::StatusOr<std::string> CachedPack(const std::string& model_dir, const OpenAsOptions& options) {
  try {
    MOERT_ASSIGN_OR_RETURN(Cached cached, FindOrMake(model_dir, options));
    return std::move(cached.pack);
  } catch (...) {
    return ExceptionStatus(model_dir);
  }
}

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenModelAs(const std::string& model_dir,
                                                          const OpenAsOptions& options) {
  try {
    MOERT_ASSIGN_OR_RETURN(const Cached cached, FindOrMake(model_dir, options));
    ExpertPackOptions pack_options;
    pack_options.source_identity = cached.identity;
    return OpenExpertPack(cached.pack, pack_options);
  } catch (...) {
    return ExceptionStatus(model_dir);
  }
}

}  // namespace moert
