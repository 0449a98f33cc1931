#include "examples/cli/pack/calibrate_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <new>

#include "base/hash64.h"
#include "base/status_macros.h"
#include "examples/cli/pack/calibration_stream.h"
#include "examples/cli/pack/moe_block.h"
#include "examples/host/model.h"
#include "format/calibration.h"
#include "format/checkpoint_experts.h"
#include "format/file_writer.h"
#include "format/hf_config.h"
#include "format/model_cache.h"
#include "format/safetensors.h"
#include "format/sealed_json.h"

namespace moert::cli {
namespace {

// Rename makes it whole or not there.
absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string part = path + ".tmp";
  std::error_code ec;
  std::filesystem::remove(part, ec);
  MOERT_ASSIGN_OR_RETURN(auto writer, FileWriter::Create(part));
  MOERT_RETURN_IF_ERROR(writer->Append(text));
  MOERT_RETURN_IF_ERROR(writer->Close());
  std::filesystem::rename(part, path, ec);
  if (ec) return absl::InternalError(fmt::format("{}: {}", path, ec.message()));
  return absl::OkStatus();
}

class Measurement {
 public:
  static absl::Status Run(const CalibrateJob& job) {
    Measurement m(job);
    MOERT_RETURN_IF_ERROR(m.Open());
    MOERT_RETURN_IF_ERROR(m.OpenPartial());
    return m.MeasureAll();
  }

 private:
  explicit Measurement(const CalibrateJob& job) : job_(job), partial_(job.out + ".partial") {}

  absl::Status Open() {
    std::error_code ec;
    if (std::filesystem::exists(job_.out, ec)) {
      return absl::AlreadyExistsError(job_.out + " already exists");
    }
    MOERT_ASSIGN_OR_RETURN(config_, LoadHfConfig(job_.model));
    MOERT_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(job_.model));
    MOERT_ASSIGN_OR_RETURN(experts_, CheckpointExperts::Create(checkpoint_.get(), &config_));
    ThreadPoolOptions options;
    options.threads = job_.threads;
    MOERT_ASSIGN_OR_RETURN(pool_, CreateThreadPool(options));
    const int64_t window = std::min(job_.window, config_.max_position_embeddings);
    MOERT_ASSIGN_OR_RETURN(
        tokens_, ReadCalibrationTokens(job_.token_files, config_.vocab_size, window, job_.tokens));
    MOERT_ASSIGN_OR_RETURN(decoder_,
                           host::Decoder::Load(*checkpoint_, config_, pool_.get(), nullptr));
    MOERT_ASSIGN_OR_RETURN(blocks_, MoeBlocks::Create(experts_.get(), pool_.get()));
    stream_ = std::make_unique<CalibrationStream>(decoder_.get(), &tokens_);
    Hasher64 hasher;
    hasher.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(tokens_.ids.data()),
                                   tokens_.ids.size() * sizeof(int32_t)));
    result_.model = config_.moe;
    MOERT_ASSIGN_OR_RETURN(result_.source_identity, CheckpointIdentity(job_.model, Env::Default()));
    result_.tokens = static_cast<int64_t>(tokens_.ids.size());
    result_.window = tokens_.window;
    result_.tokens_checksum = HexOf(hasher.Finish());
    result_.method = job_.method;
    result_.hadamard = job_.settings.hadamard;
    result_.schemes = job_.settings.schemes;
    return absl::OkStatus();
  }

  // The first line says what is measured (a calibration without layers), each further one is a
  // layer.
  absl::Status OpenPartial() {
    const std::string job = CalibrationToJson(result_);
    std::error_code ec;
    int64_t good = 0;
    if (std::filesystem::exists(partial_, ec)) {
      MOERT_ASSIGN_OR_RETURN(const auto file,
                             Env::Default()->Open(partial_, FileAccess::kBuffered));
      std::string text(static_cast<size_t>(file->size()), '\0');
      MOERT_RETURN_IF_ERROR(
          file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
      if (text.size() >= job.size() && text.compare(0, job.size(), job) != 0) {
        return absl::FailedPreconditionError(
            fmt::format("{} is of another calibration: other tokens, schemes or model; remove it "
                        "to begin anew",
                        partial_));
      }
      if (text.size() >= job.size()) {
        good = static_cast<int64_t>(job.size());
        // A line that was not written whole is damaged or has no end.
        for (size_t at = job.size(), end; (end = text.find('\n', at)) != std::string::npos;
             at = end + 1) {
          const size_t l = result_.layers.size();
          if (l == config_.moe.layers.size()) break;
          auto layer =
              LayerCalibrationFromLine(text.substr(at, end - at), config_.moe.layers[l].num_experts,
                                       result_.schemes.size(), partial_);
          if (!layer.ok()) break;
          result_.layers.push_back(*std::move(layer));
          good = static_cast<int64_t>(end + 1);
        }
      }
      MOERT_ASSIGN_OR_RETURN(journal_, FileWriter::Resume(partial_, good));
    } else {
      MOERT_ASSIGN_OR_RETURN(journal_, FileWriter::Create(partial_));
    }
    if (good == 0) MOERT_RETURN_IF_ERROR(journal_->Append(job));
    if (!result_.layers.empty() && job_.log) {
      job_.log(fmt::format("going on with {} after {} of {} layers", partial_,
                           result_.layers.size(), config_.moe.num_layers()));
    }
    return absl::OkStatus();
  }

  absl::Status MeasureAll() {
    const int done = static_cast<int>(result_.layers.size());
    for (int l = 0; l < config_.moe.num_layers(); ++l) {
      LayerCalibration layer;
      MOERT_RETURN_IF_ERROR(RunLayer(l, /*measure=*/l >= done, &layer));
      if (l < done) continue;
      MOERT_RETURN_IF_ERROR(journal_->Append(LayerCalibrationToLine(layer)));
      MOERT_RETURN_IF_ERROR(journal_->Sync());
      result_.layers.push_back(std::move(layer));
    }
    MOERT_RETURN_IF_ERROR(journal_->Close());
    MOERT_RETURN_IF_ERROR(WriteWhole(job_.out, CalibrationToJson(result_)));
    std::error_code ec;
    std::filesystem::remove(partial_, ec);
    if (job_.log) {
      job_.log(fmt::format("{} tokens, mean loss {:.5f}", result_.tokens, stream_->FinishNll()));
    }
    return absl::OkStatus();
  }

  absl::Status RunLayer(int l, bool measure, LayerCalibration* out) {
    const MoeLayerSpec& layer = config_.moe.layers[static_cast<size_t>(l)];
    const auto experts = static_cast<size_t>(layer.num_experts);
    const size_t numbers = kLinearBlocks * result_.schemes.size();
    out->selections.resize(experts);
    out->weight_sums.resize(experts);
    out->delta.resize(experts * numbers);
    std::vector<double> squares(experts, 0.0);
    SensitivitySettings settings = job_.settings;
    if (!measure) settings.schemes.clear();
    MOERT_RETURN_IF_ERROR(blocks_->Run(
        l, stream_.get(),
        [&](int e, const ExpertRows& tokens, Floats* x, ThreadPool* single) -> absl::Status {
          const auto i = static_cast<size_t>(e);
          ExpertWeights stored;
          ExpertMatrices weights;
          absl::Status status = experts_->ReadExpert(l, e, &stored);
          if (status.ok()) status = WidenExpert(stored, &weights);
          if (!status.ok()) return Located(status, l, e);
          const auto delta =
              ExpertSensitivity(layer, settings, std::move(weights), tokens.weights, single, x);
          if (!delta.ok()) return Located(delta.status(), l, e);
          out->selections[i] = static_cast<int64_t>(tokens.rows.size());
          for (size_t t = 0; t < tokens.weights.size(); ++t) {
            const double weight = tokens.weights[t];
            out->weight_sums[i] += weight;
            for (int64_t c = 0; c < layer.hidden; ++c) {
              const double v =
                  weight * (*x)[t * static_cast<size_t>(layer.hidden) + static_cast<size_t>(c)];
              squares[i] += v * v;
            }
          }
          std::copy(delta->begin(), delta->end(),
                    out->delta.begin() + static_cast<int64_t>(i * numbers));
          return absl::OkStatus();
        },
        [&](int) {
          ++done_;
          if (job_.progress) job_.progress(done_, config_.moe.total_experts());
          return absl::OkStatus();
        }));
    if (!measure) return absl::OkStatus();
    double total = 0;
    for (const double s : squares) total += s;
    out->output_norm = std::sqrt(total);
    out->cross_layer_accuracy = blocks_->cross_layer_accuracy();
    return absl::OkStatus();
  }

  absl::Status Located(const absl::Status& status, int l, int e) const {
    return absl::Status(status.code(), fmt::format("{}: layer {}, expert {}: {}", job_.model, l, e,
                                                   std::string(status.message())));
  }

  const CalibrateJob& job_;
  const std::string partial_;
  HfConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<CheckpointExperts> experts_;
  std::unique_ptr<ThreadPool> pool_;
  CalibrationTokens tokens_;
  std::unique_ptr<host::Decoder> decoder_;
  std::unique_ptr<MoeBlocks> blocks_;
  std::unique_ptr<CalibrationStream> stream_;
  std::unique_ptr<FileWriter> journal_;
  Calibration result_;
  int64_t done_ = 0;
};

}  // namespace

absl::Status RunCalibrateJob(const CalibrateJob& job) {
  try {
    return Measurement::Run(job);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: out of memory", job.out));
  }
}

}  // namespace moert::cli
