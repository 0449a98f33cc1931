#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/plan.h"
#include "moert/offline/quantize.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "offline/cancelled.h"
#include "offline/expert_quantizer.h"
#include "offline/layer_rounder.h"
#include "offline/moe_block.h"
#include "offline/offline_device.h"
#include "offline/sorted_versions.h"
#include "pack/model_cache.h"
#include "pack/pack_writer.h"
#include "pack/pack_manifest.h"

namespace moert::offline {
namespace {

/// Checks a version that a host made like one from a file.
absl::StatusOr<PackVersion> CheckedVersion(const PackVersion& version, const MoeModelSpec& model) {
  JsonWriter text;
  WriteVersion(version, &text);
  const std::string source = fmt::format("version {}", version.name);
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(text.Take(), source));
  return VersionFromJson(document.root(), model, source);
}

class Quantization {
 public:
  static absl::Status Run(const QuantizeJob& job) {
    Quantization q(job);
    MOERT_RETURN_IF_ERROR(q.Open());
    return q.WriteAll();
  }

 private:
  // A version made by GPTQ has its own stream of calibration tokens: their values in a layer depend
  // on how the previous layers were quantized.
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
    if (job_.method == QuantMethod::kGptq) MOERT_RETURN_IF_ERROR(OpenCalibration());
    MOERT_ASSIGN_OR_RETURN(device_, OpenOfflineDevice(job_.backend, job_.log));
    PackDescription description;
    description.model = config_.moe;
    std::vector<PackVersion> versions;
    std::map<std::string, JsonDocument> summaries;  // of plans, by name
    for (const Scheme& scheme : job_.schemes) {
      versions.push_back(PackVersion::Uniform(scheme, job_.hadamard && !scheme.is_bf16()));
    }
    for (const std::string& path : job_.plans) {
      MOERT_ASSIGN_OR_RETURN(Plan plan, ReadPlan(path, Env::Default()));
      if (!(plan.model == config_.moe)) {
        return InvalidArgument("{} is a plan for another model than {}", path, job_.model);
      }
      MOERT_ASSIGN_OR_RETURN(JsonDocument summary,
                             JsonDocument::Parse(std::move(plan.summary_json), path));
      summaries.insert_or_assign(plan.version.name, std::move(summary));
      versions.push_back(std::move(plan.version));
    }
    for (const PackVersion& given : job_.versions) {
      MOERT_ASSIGN_OR_RETURN(PackVersion version, CheckedVersion(given, config_.moe));
      versions.push_back(std::move(version));
    }
    MOERT_ASSIGN_OR_RETURN(description.versions, SortedVersions(config_.moe, std::move(versions)));
    for (const PackVersion& v : description.versions) AddVersion(v);
    description.quantizer_json = Settings(summaries);
    MOERT_ASSIGN_OR_RETURN(description.source_identity,
                           CheckpointIdentity(job_.model, Env::Default()));
    description.owner_only = job_.owner_only;
    MOERT_ASSIGN_OR_RETURN(writer_, PackWriter::CreateResumable(job_.out, std::move(description)));
    Log(fmt::format("writing {} into {}", BytesText(writer_->total_bytes()), job_.out));
    rounder_ = std::make_unique<LayerRounder>(
        LayerRounder::Parts{experts_.get(), writer_.get(), pool_.get(), device_.get(), job_.model,
                            job_.cancelled, [this](int64_t matrices) { Advance(matrices); }});
    return absl::OkStatus();
  }

  absl::Status OpenCalibration() {
    if (job_.token_files.empty()) {
      return absl::InvalidArgumentError("method gptq needs files of calibration tokens");
    }
    if (!job_.open_model) {
      return absl::InvalidArgumentError("QuantizeJob::open_model is null: gptq needs the model");
    }
    const int64_t window = std::min(job_.window, config_.max_position_embeddings);
    MOERT_ASSIGN_OR_RETURN(tokens_,
                           ReadCalibrationTokens(job_.token_files, config_.vocab_size, window,
                                                 job_.calibration_tokens, job_.read_tokens));
    MOERT_ASSIGN_OR_RETURN(model_, job_.open_model(*checkpoint_, config_, pool_.get(), window));
    MOERT_ASSIGN_OR_RETURN(blocks_,
                           MoeBlocks::Create(experts_.get(), {pool_.get(), model_->products()}));
    return absl::OkStatus();
  }

  // The quantizer in the pack's manifest.
  std::string Settings(const std::map<std::string, JsonDocument>& summaries) const {
    JsonWriter out;
    out.BeginObject();
    if (job_.method == QuantMethod::kGptq) {
      out.Key("calibration").BeginObject().Field("checksum", ChecksumOf(tokens_));
      out.Field("tokens", tokens_.ids.size()).Field("window", tokens_.window).EndObject();
    }
    if (job_.hadamard) out.Field("hadamard", true);
    out.Field("method", QuantMethodName(job_.method));
    if (!summaries.empty()) {
      out.Key("plans").BeginObject();
      for (const auto& [name, summary] : summaries) out.Key(name).Copy(summary.root());
      out.EndObject();
    }
    return out.EndObject().Take();
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
    if (done_before > 0) {
      Log(fmt::format("continuing {}.partial after {} of {} layers", job_.out, done_before,
                      layers));
    }
    total_ = config_.moe.total_experts() * 3 * static_cast<int64_t>(versions_.size());
    for (int l = 0; l < done_before; ++l) MOERT_RETURN_IF_ERROR(RepeatLayer(l));
    const bool calibrated = std::any_of(versions_.begin(), versions_.end(),
                                        [](const Version& v) { return v.stream != nullptr; });
    if (calibrated) {
      for (int l = done_before; l < layers; ++l) MOERT_RETURN_IF_ERROR(WriteLayer(l));
    } else {
      MOERT_RETURN_IF_ERROR(WriteLayers(done_before));
    }
    LogFallbacks();
    LogDeviceError(device_.get(), job_.log);
    return writer_->Finish();
  }

  // Only passes the calibration tokens through a layer that an earlier run completed.
  absl::Status RepeatLayer(int l) {
    const int64_t experts = config_.moe.layers[l].num_experts;
    for (int v = 0; v < static_cast<int>(versions_.size()); ++v) {
      Version& version = versions_[v];
      if (version.stream != nullptr) {
        std::vector<std::vector<std::byte>> records(experts);
        for (int e = 0; e < experts; ++e) {
          MOERT_RETURN_IF_ERROR(writer_->ReadRecord(l, e, v, &records[e]));
        }
        MOERT_RETURN_IF_ERROR(blocks_->Run(
            l, version.stream.get(),
            [&](int e, const ExpertRows& tokens, Floats* x, ThreadPool* single) -> absl::Status {
              MOERT_RETURN_IF_ERROR(CheckWanted(job_.cancelled));
              return Forward(l, e, v, records[e].data(), tokens, single, x);
            },
            [](int) { return absl::OkStatus(); }));
      }
      Advance(3 * experts);
    }
    return absl::OkStatus();
  }

  LayerRounder::Piece PieceOf(int l, int v) const {
    return {l, config_.moe.layers[l].num_experts, v, versions_[v].method};
  }

  // Writes all layers from `first` on, without a pause between them.
  absl::Status WriteLayers(int first) {
    MOERT_RETURN_IF_ERROR(CheckWanted(job_.cancelled));
    const int versions = static_cast<int>(versions_.size());
    std::vector<LayerRounder::Piece> pieces;
    for (int l = first; l < config_.moe.num_layers(); ++l) {
      for (int v = 0; v < versions; ++v) pieces.push_back(PieceOf(l, v));
    }
    return rounder_->Write(pieces, [&](const LayerRounder::Piece& piece) {
      return piece.version + 1 == versions ? FinishLayer(piece.layer) : absl::OkStatus();
    });
  }

  absl::Status WriteLayer(int l) {
    MOERT_RETURN_IF_ERROR(CheckWanted(job_.cancelled));
    for (int v = 0; v < static_cast<int>(versions_.size()); ++v) {
      MOERT_RETURN_IF_ERROR(versions_[v].stream != nullptr ? WriteCalibrated(l, v)
                                                           : rounder_->Write({PieceOf(l, v)}));
    }
    return FinishLayer(l);
  }

  absl::Status FinishLayer(int l) {
    MOERT_ASSIGN_OR_RETURN(const LayerConstants constants, experts_->ReadConstants(l));
    MOERT_RETURN_IF_ERROR(writer_->WriteConstants(l, constants));
    return writer_->CommitLayer(l);
  }

  // One layer of a version by GPTQ.
  absl::Status WriteCalibrated(int l, int v) {
    const MoeLayerSpec& layer = config_.moe.layers[l];
    const size_t experts = static_cast<size_t>(layer.num_experts);
    std::vector<std::vector<std::byte>> records(experts);
    std::vector<GptqOutcome> outcomes(experts);
    return blocks_->Run(
        l, versions_[v].stream.get(),
        [&](int e, const ExpertRows& tokens, Floats* x, ThreadPool* single) -> absl::Status {
          MOERT_RETURN_IF_ERROR(CheckWanted(job_.cancelled));
          std::vector<std::byte>& record = records[e];
          MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, writer_->Layout(l, e, v));
          record.assign(layout.bytes, std::byte{0});
          ExpertWeights stored;
          ExpertMatrices weights;
          MOERT_RETURN_IF_ERROR(experts_->ReadExpert(l, e, &stored));
          absl::Status status = WidenExpert(stored, &weights);
          if (!status.ok()) return AtExpert(status, job_.model, l, e);
          const auto outcome =
              PassExpertGptq(layer, layout, weights, tokens.weights, {single, model_->products()},
                             device_.get(), record.data(), x);
          if (!outcome.ok()) return AtExpert(outcome.status(), job_.model, l, e);
          outcomes[e] = *outcome;
          return absl::OkStatus();
        },
        [&](int e) -> absl::Status {
          const GptqOutcome& outcome = outcomes[e];
          gptq_matrices_ += outcome.gptq_matrices;
          fallback_matrices_ += outcome.fallback_matrices;
          std::vector<std::byte> record = std::move(records[e]);
          MOERT_RETURN_IF_ERROR(writer_->WriteRecord(l, e, v, record));
          Advance(3);
          return absl::OkStatus();
        });
  }

  // Turns the inputs x of an expert's tokens into its outputs.
  absl::Status Forward(int l, int e, int v, const std::byte* record, const ExpertRows& tokens,
                       ThreadPool* single, Floats* x) const {
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, writer_->Layout(l, e, v));
    MOERT_ASSIGN_OR_RETURN(Floats y, ForwardRecord(config_.moe.layers[l], layout, record, x,
                                                   static_cast<int64_t>(tokens.rows.size()),
                                                   {single, model_->products()}, device_.get()));
    x->swap(y);
    return absl::OkStatus();
  }

  void Advance(int64_t matrices) {
    done_ += matrices;
    if (job_.progress) job_.progress(done_, total_);
  }

  void LogFallbacks() const {
    if (fallback_matrices_ == 0) return;
    Log(fmt::format(
        "{} of {} matrices saw too few calibration tokens for gptq and were quantized by hqq",
        fallback_matrices_, gptq_matrices_ + fallback_matrices_));
  }

  void Log(const std::string& line) const {
    if (job_.log) job_.log(line);
  }

  const QuantizeJob& job_;
  HfConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<CheckpointExperts> experts_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<OfflineDevice> device_;  // null: all on the CPU
  CalibrationTokens tokens_;
  std::unique_ptr<CalibrationModel> model_;  // gptq
  std::unique_ptr<MoeBlocks> blocks_;
  std::vector<Version> versions_;
  std::unique_ptr<PackWriter> writer_;
  std::unique_ptr<LayerRounder> rounder_;
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

absl::StatusOr<QuantMethod> ParseQuantMethod(absl::string_view name) try {
  for (const QuantMethod method : {QuantMethod::kRtn, QuantMethod::kHqq, QuantMethod::kGptq}) {
    if (name == QuantMethodName(method)) return method;
  }
  return InvalidArgument("\"{}\" is no method; legal are rtn, hqq and gptq", std::string(name));
} catch (...) {
  return ExceptionStatus(name);
}

absl::StatusOr<std::vector<Scheme>> ParseSchemes(absl::string_view list) try {
  std::vector<Scheme> schemes;
  for (const auto& name : absl::StrSplit(list, ',')) {
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
    if (std::find(schemes.begin(), schemes.end(), scheme) != schemes.end()) {
      return InvalidArgument("{} is listed twice", scheme.Name());
    }
    schemes.push_back(scheme);
  }
  return schemes;
} catch (...) {
  return ExceptionStatus(list);
}

absl::Status RunQuantizeJob(const QuantizeJob& job) {
  try {
    return offline::Quantization::Run(job);
  } catch (...) {  // no memory, or no thread
    return ExceptionStatus(job.out);
  }
}

}  // namespace moert
