#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/bf16.h"
#include "base/hash64.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/default_thread_pool.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/plan.h"
#include "moert/offline/quantize.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "offline/expert_quantizer.h"
#include "offline/moe_block.h"
#include "pack/model_cache.h"
#include "pack/pack_writer.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::offline {
namespace {

// Experts in memory at a time, a thread.
constexpr int kExpertsPerThread = 2;

/// Bytes of all records of a version.
absl::StatusOr<int64_t> VersionBytes(const MoeModelSpec& model, const PackVersion& version) {
  int64_t bytes = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                             ExpertRecordLayout(layer, version.format(l, e)));
      bytes += layout.bytes;
    }
  }
  return bytes;
}

/// One version a scheme and a plan, most bits first, as packs list them.
absl::StatusOr<std::vector<PackVersion>> SortedVersions(const MoeModelSpec& model,
                                                        std::vector<PackVersion> versions) {
  std::vector<std::pair<int64_t, PackVersion>> sized;
  for (PackVersion& version : versions) {
    for (const auto& [bytes, other] : sized) {
      if (other.name == version.name) {
        return absl::InvalidArgumentError(
            fmt::format("two versions are called {}: plans need names of their own", version.name));
      }
    }
    MOERT_ASSIGN_OR_RETURN(const int64_t bytes, VersionBytes(model, version));
    sized.emplace_back(bytes, std::move(version));
  }
  std::stable_sort(sized.begin(), sized.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  versions.clear();
  for (auto& [bytes, version] : sized) versions.push_back(std::move(version));
  return versions;
}

/// Identifies the tokens that calibrated: of a resumed run they must be the same.
std::string Checksum(const CalibrationTokens& tokens) {
  Hasher64 hasher;
  hasher.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(tokens.ids.data()),
                                 tokens.ids.size() * sizeof(int32_t)));
  return fmt::format("{:016x}", hasher.Finish());
}

class Quantization {
 public:
  static absl::Status Run(const QuantizeJob& job) {
    Quantization q(job);
    MOERT_RETURN_IF_ERROR(q.Open());
    return q.WriteAll();
  }

 private:
  // A version that GPTQ makes has its own stream of calibration tokens: what they look like in a
  // layer depends on how the layers before it came out.
  struct Version {
    PackVersion pack;
    QuantMethod method = QuantMethod::kRtn;
    std::unique_ptr<CalibrationStream> stream;
  };

  explicit Quantization(const QuantizeJob& job) : job_(job) {}

  absl::Status Open() {
    MOERT_ASSIGN_OR_RETURN(config_, LoadHfConfig(job_.model));
    MOERT_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(job_.model));
    MOERT_ASSIGN_OR_RETURN(experts_, CheckpointExperts::Create(checkpoint_.get(), &config_));
    ThreadPoolOptions options;
    options.threads = job_.threads;
    MOERT_ASSIGN_OR_RETURN(pool_, CreateThreadPool(options));
    nlohmann::json settings = {{"method", std::string(QuantMethodName(job_.method))}};
    if (job_.hadamard) settings["hadamard"] = true;
    if (job_.method == QuantMethod::kGptq) MOERT_RETURN_IF_ERROR(OpenCalibration(&settings));
    PackDescription description;
    description.model = config_.moe;
    std::vector<PackVersion> versions;
    for (const Scheme& scheme : job_.schemes) {
      versions.push_back(PackVersion::Uniform(scheme, job_.hadamard && !scheme.is_bf16()));
    }
    for (const std::string& path : job_.plans) {
      MOERT_ASSIGN_OR_RETURN(Plan plan, ReadPlan(path, Env::Default()));
      if (!(plan.model == config_.moe)) {
        return absl::InvalidArgumentError(
            fmt::format("{} is a plan for another model than {}", path, job_.model));
      }
      settings["plans"][plan.version.name] = nlohmann::json::parse(plan.summary_json);
      versions.push_back(std::move(plan.version));
    }
    MOERT_ASSIGN_OR_RETURN(description.versions, SortedVersions(config_.moe, std::move(versions)));
    for (const PackVersion& v : description.versions) AddVersion(v);
    description.quantizer_json = settings.dump();
    MOERT_ASSIGN_OR_RETURN(description.source_identity,
                           CheckpointIdentity(job_.model, Env::Default()));
    MOERT_ASSIGN_OR_RETURN(writer_, PackWriter::CreateResumable(job_.out, std::move(description)));
    return absl::OkStatus();
  }

  absl::Status OpenCalibration(nlohmann::json* settings) {
    if (job_.token_files.empty()) {
      return absl::InvalidArgumentError("method gptq needs files of calibration tokens");
    }
    if (!job_.open_model) {
      return absl::InvalidArgumentError("QuantizeJob::open_model is null: gptq needs the model");
    }
    const int64_t window = std::min(job_.window, config_.max_position_embeddings);
    MOERT_ASSIGN_OR_RETURN(tokens_, ReadCalibrationTokens(job_.token_files, config_.vocab_size,
                                                          window, job_.calibration_tokens));
    MOERT_ASSIGN_OR_RETURN(model_, job_.open_model(*checkpoint_, config_, pool_.get(), window));
    MOERT_ASSIGN_OR_RETURN(blocks_,
                           MoeBlocks::Create(experts_.get(), {pool_.get(), model_->products()}));
    (*settings)["calibration"] = {{"tokens", tokens_.ids.size()},
                                  {"window", tokens_.window},
                                  {"checksum", Checksum(tokens_)}};
    return absl::OkStatus();
  }

  void AddVersion(const PackVersion& pack) {
    Version version;
    version.pack = pack;
    const bool lossless = std::all_of(pack.formats.begin(), pack.formats.end(), [](const auto& f) {
      return f.uniform() && f.gate.is_bf16();
    });
    version.method = lossless ? QuantMethod::kRtn : job_.method;
    if (version.method == QuantMethod::kGptq) {
      version.stream = std::make_unique<CalibrationStream>(
          ModelContext{model_.get(), &config_, pool_.get()}, &tokens_);
    }
    versions_.push_back(std::move(version));
  }

  absl::Status WriteAll() {
    const int done_before = writer_->layers_done();
    const int layers = config_.moe.num_layers();
    if (done_before > 0 && job_.log) {
      job_.log(fmt::format("continuing {}.partial after {} of {} layers", job_.out, done_before,
                           layers));
    }
    total_ = config_.moe.total_experts() * 3 * static_cast<int64_t>(versions_.size());
    for (int l = 0; l < layers; ++l) {
      MOERT_RETURN_IF_ERROR(l < done_before ? RepeatLayer(l) : WriteLayer(l));
    }
    LogFallbacks();
    return writer_->Finish();
  }

  // A layer that an earlier run completed: only the calibration tokens have to pass it.
  absl::Status RepeatLayer(int l) {
    const int64_t experts = config_.moe.layers[static_cast<size_t>(l)].num_experts;
    for (int v = 0; v < static_cast<int>(versions_.size()); ++v) {
      Version& version = versions_[static_cast<size_t>(v)];
      if (version.stream != nullptr) {
        std::vector<std::vector<std::byte>> records(static_cast<size_t>(experts));
        for (int e = 0; e < experts; ++e) {
          MOERT_RETURN_IF_ERROR(writer_->ReadRecord(l, e, v, &records[static_cast<size_t>(e)]));
        }
        MOERT_RETURN_IF_ERROR(blocks_->Run(
            l, version.stream.get(),
            [&](int e, const ExpertRows& tokens, Floats* x, ThreadPool* single) {
              return Forward(l, e, v, records[static_cast<size_t>(e)].data(), tokens, single, x);
            },
            [](int) { return absl::OkStatus(); }));
      }
      Advance(3 * experts);
    }
    return absl::OkStatus();
  }

  absl::Status WriteLayer(int l) {
    const int experts = config_.moe.layers[static_cast<size_t>(l)].num_experts;
    const int chunk = kExpertsPerThread * pool_->num_threads();
    for (int v = 0; v < static_cast<int>(versions_.size()); ++v) {
      if (versions_[static_cast<size_t>(v)].stream != nullptr) {
        MOERT_RETURN_IF_ERROR(WriteCalibrated(l, v));
        continue;
      }
      for (int e = 0; e < experts; e += chunk) {
        MOERT_RETURN_IF_ERROR(WriteExperts(l, v, e, std::min(experts, e + chunk)));
      }
    }
    MOERT_ASSIGN_OR_RETURN(const LayerConstants constants, experts_->ReadConstants(l));
    MOERT_RETURN_IF_ERROR(writer_->WriteConstants(l, constants));
    return writer_->CommitLayer(l);
  }

  // One layer of a version by GPTQ.
  absl::Status WriteCalibrated(int l, int v) {
    const MoeLayerSpec& layer = config_.moe.layers[static_cast<size_t>(l)];
    const size_t experts = static_cast<size_t>(layer.num_experts);
    std::vector<std::vector<std::byte>> records(experts);
    std::vector<GptqOutcome> outcomes(experts);
    return blocks_->Run(
        l, versions_[static_cast<size_t>(v)].stream.get(),
        [&](int e, const ExpertRows& tokens, Floats* x, ThreadPool* single) -> absl::Status {
          std::vector<std::byte>& record = records[static_cast<size_t>(e)];
          MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, writer_->Layout(l, e, v));
          record.assign(static_cast<size_t>(layout.bytes), std::byte{0});
          ExpertWeights stored;
          ExpertMatrices weights;
          MOERT_RETURN_IF_ERROR(experts_->ReadExpert(l, e, &stored));
          absl::Status status = WidenExpert(stored, &weights);
          if (!status.ok()) return Located(status, l, e);
          Floats inputs = *x;
          const auto outcome =
              EncodeExpertGptq(layer, layout, std::move(weights), &inputs, tokens.weights,
                               {single, model_->products()}, record.data());
          if (!outcome.ok()) return Located(outcome.status(), l, e);
          outcomes[static_cast<size_t>(e)] = *outcome;
          return Forward(l, e, v, record.data(), tokens, single, x);
        },
        [&](int e) -> absl::Status {
          const GptqOutcome& outcome = outcomes[static_cast<size_t>(e)];
          gptq_matrices_ += outcome.gptq_matrices;
          fallback_matrices_ += outcome.fallback_matrices;
          std::vector<std::byte> record = std::move(records[static_cast<size_t>(e)]);
          MOERT_RETURN_IF_ERROR(writer_->WriteRecord(l, e, v, record));
          Advance(3);
          return absl::OkStatus();
        });
  }

  // Turns the inputs x of an expert's tokens into its outputs.
  absl::Status Forward(int l, int e, int v, const std::byte* record, const ExpertRows& tokens,
                       ThreadPool* single, Floats* x) const {
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, writer_->Layout(l, e, v));
    MOERT_ASSIGN_OR_RETURN(
        Floats y,
        ForwardRecord(config_.moe.layers[static_cast<size_t>(l)], layout, record, x,
                      static_cast<int64_t>(tokens.rows.size()), {single, model_->products()}));
    x->swap(y);
    return absl::OkStatus();
  }

  // Widened. Of quantized files a matrix at a time: their codes and scales, not rounded to bf16.
  absl::Status ReadWeights(int l, int e, ExpertMatrices* out) const {
    const bool gated = config_.moe.layers[static_cast<size_t>(l)].activation.gated;
    if (experts_->stored(l) == ExpertFormat::Uniform(Scheme{})) {
      ExpertWeights stored;
      MOERT_RETURN_IF_ERROR(experts_->ReadExpert(l, e, &stored));
      const absl::Status status = WidenExpert(stored, out);
      return status.ok() ? status : Located(status, l, e);
    }
    if (gated) MOERT_RETURN_IF_ERROR(experts_->ReadWidened(l, e, Projection::kGate, &out->gate));
    MOERT_RETURN_IF_ERROR(experts_->ReadWidened(l, e, Projection::kUp, &out->up));
    return experts_->ReadWidened(l, e, Projection::kDown, &out->down);
  }

  // Some experts of a layer by a method that needs no calibration.
  absl::Status WriteExperts(int l, int v, int begin, int end) {
    const size_t count = static_cast<size_t>(end - begin);
    std::vector<ExpertMatrices> weights(count);
    std::vector<RecordLayout> layouts(count);
    std::vector<std::vector<std::byte>> records(count);
    for (size_t i = 0; i < count; ++i) {
      const int e = begin + static_cast<int>(i);
      MOERT_ASSIGN_OR_RETURN(layouts[i], writer_->Layout(l, e, v));
      records[i].assign(static_cast<size_t>(layouts[i].bytes), std::byte{0});
      if (layouts[i].format == experts_->stored(l)) {  // nothing to quantize: as it is
        MOERT_RETURN_IF_ERROR(experts_->ReadRecord(l, e, layouts[i], records[i].data()));
        continue;
      }
      MOERT_RETURN_IF_ERROR(ReadWeights(l, e, &weights[i]));
      MOERT_RETURN_IF_ERROR(experts_->ReadBiases(l, e, layouts[i], records[i].data()));
    }
    const QuantMethod method = versions_[static_cast<size_t>(v)].method;
    std::vector<absl::Status> outcomes(3 * count);
    pool_->Run(static_cast<int64_t>(3 * count), [&](int64_t n, int) {
      const size_t i = static_cast<size_t>(n / 3);
      const MatrixLayout* const layout[] = {&layouts[i].gate, &layouts[i].up, &layouts[i].down};
      std::vector<float>* const matrix[] = {&weights[i].gate, &weights[i].up, &weights[i].down};
      const char* const names[] = {"gate", "up", "down"};
      if (matrix[n % 3]->empty()) return;  // copied, or a gate that is not there
      const absl::Status status = EncodeStored(*layout[n % 3], method, layouts[i].format.hadamard,
                                               matrix[n % 3], records[i].data());
      outcomes[static_cast<size_t>(n)] =
          status.ok()
              ? status
              : Located(absl::Status(status.code(), fmt::format("{}: {}", names[n % 3],
                                                                std::string(status.message()))),
                        l, begin + static_cast<int>(i));
    });
    for (const absl::Status& s : outcomes) MOERT_RETURN_IF_ERROR(s);
    for (size_t i = 0; i < count; ++i) {
      MOERT_RETURN_IF_ERROR(writer_->WriteRecord(l, begin + static_cast<int>(i), v, records[i]));
    }
    Advance(3 * static_cast<int64_t>(count));
    return absl::OkStatus();
  }

  // Runs on the pool's threads, which nothing may throw in.
  static absl::Status EncodeStored(const MatrixLayout& layout, QuantMethod method, bool hadamard,
                                   std::vector<float>* weights, std::byte* record) {
    try {
      if (layout.scheme.is_bf16() && !hadamard) return PackMatrixBf16(layout, *weights, record);
      for (const float w : *weights) {
        if (!std::isfinite(w)) return absl::InvalidArgumentError("a weight is not finite");
      }
      if (hadamard) ApplyHadamard(layout.rows, layout.k, weights->data());
      return EncodeMatrix(layout, method, *weights, record);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory while quantizing");
    }
  }

  absl::Status Located(const absl::Status& status, int l, int e) const {
    return absl::Status(status.code(), fmt::format("{}: layer {}, expert {}: {}", job_.model, l, e,
                                                   std::string(status.message())));
  }

  void Advance(int64_t matrices) {
    done_ += matrices;
    if (job_.progress) job_.progress(done_, total_);
  }

  void LogFallbacks() const {
    if (fallback_matrices_ == 0 || !job_.log) return;
    job_.log(fmt::format(
        "{} of {} matrices saw too few calibration tokens for gptq and were quantized by hqq",
        fallback_matrices_, gptq_matrices_ + fallback_matrices_));
  }

  const QuantizeJob& job_;
  HfConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<CheckpointExperts> experts_;
  std::unique_ptr<ThreadPool> pool_;
  CalibrationTokens tokens_;
  std::unique_ptr<CalibrationModel> model_;  // gptq
  std::unique_ptr<MoeBlocks> blocks_;
  std::vector<Version> versions_;
  std::unique_ptr<PackWriter> writer_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  int64_t gptq_matrices_ = 0;
  int64_t fallback_matrices_ = 0;
};

}  // namespace
}  // namespace moert::offline

namespace moert {

absl::string_view QuantMethodName(QuantMethod method) {
  return method == QuantMethod::kRtn ? "rtn" : method == QuantMethod::kHqq ? "hqq" : "gptq";
}

absl::StatusOr<QuantMethod> ParseQuantMethod(absl::string_view name) {
  for (const QuantMethod method : {QuantMethod::kRtn, QuantMethod::kHqq, QuantMethod::kGptq}) {
    if (name == QuantMethodName(method)) return method;
  }
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" is no method; legal are rtn, hqq and gptq", std::string(name)));
}

absl::StatusOr<std::vector<Scheme>> ParseSchemes(absl::string_view list) {
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
    return offline::Quantization::Run(job);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: out of memory", job.out));
  }
}

}  // namespace moert
