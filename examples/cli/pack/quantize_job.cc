#include "examples/cli/pack/quantize_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/bf16.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "format/checkpoint_experts.h"
#include "format/hf_config.h"
#include "format/model_cache.h"
#include "format/pack_writer.h"
#include "format/safetensors.h"
#include "quant/hqq.h"
#include "quant/packing.h"
#include "quant/quantized_matrix.h"
#include "quant/rtn.h"

namespace moert::cli {
namespace {

// Experts in memory at a time, a thread.
constexpr int kExpertsPerThread = 2;

/// Bytes of all records of a version.
absl::StatusOr<int64_t> VersionBytes(const MoeModelSpec& model, const PackVersion& version) {
  int64_t bytes = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      MOERT_ASSIGN_OR_RETURN(
          const RecordLayout layout,
          MakeRecordLayout(layer.hidden, layer.intermediate, version.format(l, e)));
      bytes += layout.bytes;
    }
  }
  return bytes;
}

/// One version a scheme, most bits first, as packs list them.
absl::StatusOr<std::vector<PackVersion>> UniformVersions(const MoeModelSpec& model,
                                                         const std::vector<Scheme>& schemes) {
  std::vector<std::pair<int64_t, PackVersion>> sized;
  for (const Scheme& scheme : schemes) {
    PackVersion version = PackVersion::Uniform(scheme);
    MOERT_ASSIGN_OR_RETURN(const int64_t bytes, VersionBytes(model, version));
    sized.emplace_back(bytes, std::move(version));
  }
  std::stable_sort(sized.begin(), sized.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<PackVersion> versions;
  for (auto& [bytes, version] : sized) versions.push_back(std::move(version));
  return versions;
}

class Quantization {
 public:
  static absl::Status Run(const QuantizeJob& job) {
    Quantization q(job);
    MOERT_RETURN_IF_ERROR(q.Open());
    return q.WriteAll();
  }

 private:
  explicit Quantization(const QuantizeJob& job) : job_(job) {}

  absl::Status Open() {
    MOERT_ASSIGN_OR_RETURN(config_, LoadHfConfig(job_.model));
    MOERT_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(job_.model));
    MOERT_ASSIGN_OR_RETURN(experts_, CheckpointExperts::Create(checkpoint_.get(), &config_));
    PackDescription description;
    description.model = config_.moe;
    MOERT_ASSIGN_OR_RETURN(description.versions, UniformVersions(config_.moe, job_.schemes));
    versions_ = description.versions;
    description.quantizer_json = nlohmann::json{{"method", job_.method}}.dump();
    MOERT_ASSIGN_OR_RETURN(description.source_identity,
                           CheckpointIdentity(job_.model, Env::Default()));
    MOERT_ASSIGN_OR_RETURN(writer_, PackWriter::CreateResumable(job_.out, std::move(description)));
    ThreadPoolOptions options;
    options.threads = job_.threads;
    MOERT_ASSIGN_OR_RETURN(pool_, CreateThreadPool(options));
    return absl::OkStatus();
  }

  absl::Status WriteAll() {
    const int done_before = writer_->layers_done();
    if (done_before > 0 && job_.log) {
      job_.log(fmt::format("going on with {}.partial after {} of {} layers", job_.out, done_before,
                           config_.moe.num_layers()));
    }
    const int64_t per_expert = 3 * static_cast<int64_t>(versions_.size());
    total_ = config_.moe.total_experts() * per_expert;
    for (int l = 0; l < config_.moe.num_layers(); ++l) {
      const int64_t experts = config_.moe.layers[static_cast<size_t>(l)].num_experts;
      if (l < done_before) {
        done_ += experts * per_expert;
        continue;
      }
      MOERT_RETURN_IF_ERROR(WriteLayer(l));
    }
    return writer_->Finish();
  }

  absl::Status WriteLayer(int l) {
    const int experts = config_.moe.layers[static_cast<size_t>(l)].num_experts;
    const int chunk = kExpertsPerThread * pool_->num_threads();
    for (int v = 0; v < static_cast<int>(versions_.size()); ++v) {
      for (int e = 0; e < experts; e += chunk) {
        MOERT_RETURN_IF_ERROR(WriteExperts(l, v, e, std::min(experts, e + chunk)));
      }
    }
    MOERT_ASSIGN_OR_RETURN(const LayerConstants constants, experts_->ReadConstants(l));
    MOERT_RETURN_IF_ERROR(writer_->WriteConstants(l, constants));
    return writer_->CommitLayer(l);
  }

  absl::Status WriteExperts(int l, int v, int begin, int end) {
    const size_t count = static_cast<size_t>(end - begin);
    std::vector<ExpertWeights> weights(count);
    std::vector<RecordLayout> layouts(count);
    std::vector<std::vector<std::byte>> records(count);
    for (size_t i = 0; i < count; ++i) {
      const int e = begin + static_cast<int>(i);
      MOERT_RETURN_IF_ERROR(experts_->ReadExpert(l, e, &weights[i]));
      MOERT_ASSIGN_OR_RETURN(layouts[i], writer_->Layout(l, e, v));
      records[i].assign(static_cast<size_t>(layouts[i].bytes), std::byte{0});
    }
    std::vector<absl::Status> outcomes(3 * count);
    pool_->Run(static_cast<int64_t>(3 * count), [&](int64_t n, int) {
      const size_t i = static_cast<size_t>(n / 3);
      const MatrixLayout* const layout[] = {&layouts[i].gate, &layouts[i].up, &layouts[i].down};
      const std::vector<uint16_t>* const matrix[] = {&weights[i].gate, &weights[i].up,
                                                     &weights[i].down};
      outcomes[static_cast<size_t>(n)] = Encode(*layout[n % 3], *matrix[n % 3], records[i].data());
    });
    for (size_t n = 0; n < outcomes.size(); ++n) {
      if (outcomes[n].ok()) continue;
      const char* const names[] = {"gate", "up", "down"};
      return absl::Status(outcomes[n].code(),
                          fmt::format("{}: layer {}, expert {}, {}: {}", job_.model, l,
                                      begin + static_cast<int>(n / 3), names[n % 3],
                                      std::string(outcomes[n].message())));
    }
    for (size_t i = 0; i < count; ++i) {
      MOERT_RETURN_IF_ERROR(writer_->WriteRecord(l, begin + static_cast<int>(i), v, records[i]));
    }
    done_ += 3 * static_cast<int64_t>(count);
    if (job_.progress) job_.progress(done_, total_);
    return absl::OkStatus();
  }

  // Runs on the pool's threads, which nothing may throw in.
  absl::Status Encode(const MatrixLayout& layout, const std::vector<uint16_t>& weights,
                      std::byte* record) const {
    try {
      if (layout.scheme.is_bf16()) return PackMatrixBf16(layout, weights, record);
      std::vector<float> wide(weights.size());
      for (size_t i = 0; i < wide.size(); ++i) {
        wide[i] = Bf16ToF32(weights[i]);
        if (!std::isfinite(wide[i])) return absl::InvalidArgumentError("a weight is not finite");
      }
      return PackMatrix(
          layout, job_.method == "hqq" ? QuantizeHqq(layout, wide) : QuantizeRtn(layout, wide),
          record);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory while quantizing");
    }
  }

  const QuantizeJob& job_;
  HfConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<CheckpointExperts> experts_;
  std::vector<PackVersion> versions_;
  std::unique_ptr<PackWriter> writer_;
  std::unique_ptr<ThreadPool> pool_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Scheme>> ParseSchemes(const std::string& list) {
  std::vector<Scheme> schemes;
  for (const auto& name : absl::StrSplit(list, ',')) {
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
    if (std::find(schemes.begin(), schemes.end(), scheme) != schemes.end()) {
      return absl::InvalidArgumentError(fmt::format("{} is listed twice", scheme.Name()));
    }
    schemes.push_back(scheme);
  }
  return schemes;
}

absl::Status RunQuantizeJob(const QuantizeJob& job) {
  try {
    return Quantization::Run(job);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: out of memory", job.out));
  }
}

}  // namespace moert::cli
