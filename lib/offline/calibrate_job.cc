#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/checked_math.h"
#include "base/descriptor.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/file_writer.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/backend.h"
#include "moert/offline/calibrate.h"
#include "moert/offline/calibration.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "offline/cancelled.h"
#include "offline/layer_rounder.h"
#include "offline/loss_probe.h"
#include "offline/moe_block.h"
#include "offline/offline_device.h"
#include "pack/calibration_lines.h"
#include "pack/model_cache.h"

namespace moert::offline {
namespace {

// Writes a file that appears complete or not at all, by a rename.
absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string part = path + ".tmp";
  std::error_code ec;
  std::filesystem::remove(part, ec);
  MOERT_ASSIGN_OR_RETURN(auto writer, FileWriter::Create(part));
  MOERT_RETURN_IF_ERROR(writer->Append(text));
  MOERT_RETURN_IF_ERROR(writer->Close());
  std::filesystem::rename(part, path, ec);
  if (ec) return Internal("{}: {}", path, ec.message());
  return absl::OkStatus();
}

// Admits one writer of a calibration file at a time, for the descriptor's lifetime. Writers lock
// `path`, which is created if it does not exist.
absl::StatusOr<Descriptor> LockForWriting(const std::string& path) {
  Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (lock.get() < 0) return PosixError(errno, fmt::format("{}: open", path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return FailedPrecondition("{}: another process is writing this calibration", path);
  }
  return lock;
}

// The candidate with the fewest bytes: its errors are the largest.
absl::StatusOr<size_t> ProbeScheme(const MoeLayerSpec& layer, const std::vector<Scheme>& schemes) {
  size_t best = 0;
  int64_t least = INT64_MAX;
  for (size_t k = 0; k < schemes.size(); ++k) {
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                           ExpertRecordLayout(layer, ExpertFormat::Uniform(schemes[k])));
    if (layout.bytes >= least) continue;
    least = layout.bytes;
    best = k;
  }
  return best;
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
    MOERT_RETURN_IF_ERROR(CheckNew());
    MOERT_ASSIGN_OR_RETURN(config_, LoadHfConfig(job_.model));
    MOERT_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(job_.model));
    MOERT_ASSIGN_OR_RETURN(experts_, CheckpointExperts::Create(checkpoint_.get(), &config_));
    ThreadPoolOptions options;
    options.threads = job_.threads;
    MOERT_ASSIGN_OR_RETURN(pool_, CreateThreadPool(options));
    const int64_t window = std::min(job_.window, config_.max_position_embeddings);
    MOERT_ASSIGN_OR_RETURN(tokens_, ReadCalibrationTokens(job_.token_files, config_.vocab_size,
                                                          window, job_.tokens, job_.read_tokens));
    MOERT_ASSIGN_OR_RETURN(model_, job_.open_model(*checkpoint_, config_, pool_.get(), window));
    MOERT_ASSIGN_OR_RETURN(device_, OpenOfflineDevice(job_.backend, job_.log));
    const ModelContext context = {model_.get(), &config_, pool_.get()};
    MOERT_ASSIGN_OR_RETURN(blocks_,
                           MoeBlocks::Create(experts_.get(), {pool_.get(), model_->products()}));
    stream_ = std::make_unique<CalibrationStream>(context, &tokens_);
    result_.model = config_.moe;
    MOERT_ASSIGN_OR_RETURN(result_.source_identity, CheckpointIdentity(job_.model, Env::Default()));
    result_.tokens = static_cast<int64_t>(tokens_.ids.size());
    result_.window = tokens_.window;
    result_.tokens_checksum = ChecksumOf(tokens_);
    result_.method = std::string(QuantMethodName(job_.method));
    result_.hadamard = job_.hadamard;
    result_.schemes = job_.schemes;
    if (job_.probe_tokens == 0 || config_.moe.layers.empty()) return absl::OkStatus();
    MOERT_ASSIGN_OR_RETURN(probe_index_, ProbeScheme(config_.moe.layers[0], result_.schemes));
    result_.probe_scheme = result_.schemes[probe_index_];
    // All tokens are whole windows.
    result_.probe_tokens = CeilDiv(std::min(job_.probe_tokens, result_.tokens), window) * window;
    MOERT_ASSIGN_OR_RETURN(probe_, LossProbe::Create(context, experts_.get(), device_.get(), window,
                                                     result_.probe_tokens));
    return absl::OkStatus();
  }

  absl::Status CheckNew() const {
    std::error_code ec;
    if (!std::filesystem::exists(job_.out, ec)) return absl::OkStatus();
    return absl::AlreadyExistsError(job_.out + " already exists");
  }

  // The first line describes the measurement (a calibration without layers); each further line is a
  // layer.
  absl::Status OpenPartial() {
    const std::string job = CalibrationToJson(result_);
    MOERT_ASSIGN_OR_RETURN(lock_, LockForWriting(partial_));
    // A job that finished since Open has also removed the file that is locked here.
    MOERT_RETURN_IF_ERROR(CheckNew());
    int64_t good = 0;
    {
      MOERT_ASSIGN_OR_RETURN(const auto file,
                             Env::Default()->Open(partial_, FileAccess::kBuffered));
      std::string text(static_cast<size_t>(file->size()), '\0');
      MOERT_RETURN_IF_ERROR(
          file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
      if (text.size() >= job.size() && text.compare(0, job.size(), job) != 0) {
        return FailedPrecondition(
            "{} is of another calibration: other tokens, schemes or model; remove it to begin anew",
            partial_);
      }
      if (text.size() >= job.size()) {
        good = static_cast<int64_t>(job.size());
        // A line that was not written completely is damaged or has no line end.
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
    }
    if (good == 0) MOERT_RETURN_IF_ERROR(journal_->Append(job));
    if (!result_.layers.empty() && job_.log) {
      job_.log(fmt::format("continuing {} after {} of {} layers", partial_, result_.layers.size(),
                           config_.moe.num_layers()));
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
    const float* const hidden = stream_->FinishHidden();
    if (probe_ != nullptr) SetLossPerSquare(probe_->Divergences(hidden));
    LogDeviceError(device_.get(), job_.log);
    MOERT_RETURN_IF_ERROR(journal_->Close());
    MOERT_RETURN_IF_ERROR(WriteWhole(job_.out, CalibrationToJson(result_)));
    std::error_code ec;
    std::filesystem::remove(partial_, ec);
    if (job_.log) {
      job_.log(fmt::format("{} tokens, mean loss {:.5f}", result_.tokens, stream_->Nll()));
    }
    return absl::OkStatus();
  }

  void SetLossPerSquare(const std::vector<std::array<double, 2>>& divergences) {
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      LayerCalibration& layer = result_.layers[l];
      std::array<double, 2> squares = {};
      const size_t experts = layer.selections.size();
      for (size_t e = 0; e < experts; ++e) {
        for (int b = 0; b < kLinearBlocks; ++b) {
          const double delta =
              layer.Delta(static_cast<int>(e), b, probe_index_, result_.schemes.size());
          squares[b == kLinearBlocks - 1 ? 1 : 0] += delta * delta;
        }
      }
      layer.loss_per_square.clear();
      for (size_t part = 0; part < 2; ++part) {
        layer.loss_per_square.push_back(squares[part] > 0 ? divergences[l][part] / squares[part]
                                                          : 0);
      }
    }
  }

  SensitivitySettings Settings(bool measure) const {
    SensitivitySettings settings = {job_.schemes, job_.method, job_.hadamard};
    settings.device = device_.get();
    settings.probe = probe_ != nullptr ? static_cast<int>(probe_index_) : -1;
    if (!measure) {  // its numbers are known; the probe needs its errors once more
      settings.schemes.clear();
      if (probe_ != nullptr) settings.schemes.push_back(result_.probe_scheme);
      settings.probe = 0;
    }
    return settings;
  }

  /// Measures the changes caused by quantizing an expert; turns x, its tokens' inputs, into their
  /// outputs.
  absl::StatusOr<ExpertChanges> Changes(int l, int e, const SensitivitySettings& settings,
                                        const ExpertRows& tokens, ThreadPool* single, Floats* x) {
    ExpertWeights stored;
    ExpertMatrices weights;
    absl::Status status = experts_->ReadExpert(l, e, &stored);
    if (status.ok()) status = WidenExpert(stored, &weights);
    if (!status.ok()) return AtExpert(status, job_.model, l, e);
    auto found = ExpertSensitivity(config_.moe.layers[l], settings, weights, tokens.weights,
                                   ProbeRows(tokens), Compute{single, model_->products()}, x);
    if (!found.ok()) return AtExpert(found.status(), job_.model, l, e);
    return found;
  }

  /// The number of an expert's tokens (in ascending order) that belong to the probe.
  int64_t ProbeRows(const ExpertRows& tokens) const {
    if (probe_ == nullptr) return 0;
    return std::lower_bound(tokens.rows.begin(), tokens.rows.end(), probe_->tokens()) -
           tokens.rows.begin();
  }

  /// Sum of squares of the weighted outputs.
  static double SquareSum(const std::vector<float>& weights, const Floats& outputs) {
    const size_t hidden = weights.empty() ? 0 : outputs.size() / weights.size();
    double sum = 0;
    for (size_t t = 0; t < weights.size(); ++t) {
      for (size_t c = 0; c < hidden; ++c) {
        const double v = static_cast<double>(weights[t]) * outputs[t * hidden + c];
        sum += v * v;
      }
    }
    return sum;
  }

  absl::Status RunLayer(int l, bool measure, LayerCalibration* out) {
    const auto experts = static_cast<size_t>(config_.moe.layers[l].num_experts);
    out->selections.resize(experts);
    out->weight_sums.resize(experts);
    std::vector<double> squares(experts, 0.0);
    const SensitivitySettings settings = Settings(measure);
    const size_t numbers = kLinearBlocks * settings.schemes.size();
    out->delta.resize(experts * numbers);
    struct Change {
      ExpertRows tokens;
      ExpertChanges changes;
    };
    std::vector<Change> changes(experts);
    MOERT_RETURN_IF_ERROR(blocks_->Run(
        l, stream_.get(),
        [&](int e, const ExpertRows& tokens, Floats* x, ThreadPool* single) -> absl::Status {
          MOERT_RETURN_IF_ERROR(CheckWanted(job_.cancelled));
          const auto i = static_cast<size_t>(e);
          MOERT_ASSIGN_OR_RETURN(ExpertChanges found, Changes(l, e, settings, tokens, single, x));
          out->selections[i] = static_cast<int64_t>(tokens.rows.size());
          for (const float weight : tokens.weights) out->weight_sums[i] += weight;
          squares[i] = SquareSum(tokens.weights, *x);
          std::copy(found.delta.begin(), found.delta.end(),
                    out->delta.begin() + static_cast<int64_t>(i * numbers));
          if (probe_ != nullptr) changes[i] = {tokens, std::move(found)};
          return absl::OkStatus();
        },
        [&](int e) {
          if (probe_ != nullptr) {
            const Change change = std::move(changes[e]);
            probe_->AddExpert(change.tokens, change.changes);
          }
          ++done_;
          if (job_.progress) job_.progress(done_, config_.moe.total_experts());
          return absl::OkStatus();
        }));
    if (probe_ != nullptr) MOERT_RETURN_IF_ERROR(probe_->EndLayer(l, stream_.get()));
    if (!measure) return absl::OkStatus();
    double total = 0;
    for (const double s : squares) total += s;
    out->output_norm = std::sqrt(total);
    out->cross_layer_accuracy = blocks_->cross_layer_accuracy();
    return absl::OkStatus();
  }

  const CalibrateJob& job_;
  const std::string partial_;
  HfConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<CheckpointExperts> experts_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<OfflineDevice> device_;  // null: all on the CPU
  CalibrationTokens tokens_;
  std::unique_ptr<CalibrationModel> model_;
  std::unique_ptr<MoeBlocks> blocks_;
  std::unique_ptr<CalibrationStream> stream_;
  std::unique_ptr<LossProbe> probe_;  // null: no end-to-end loss
  size_t probe_index_ = 0;
  Descriptor lock_;
  std::unique_ptr<FileWriter> journal_;
  Calibration result_;
  int64_t done_ = 0;
};

}  // namespace
}  // namespace moert::offline

namespace moert {

absl::Status RunCalibrateJob(const CalibrateJob& job) {
  if (!job.open_model) {
    return absl::InvalidArgumentError("CalibrateJob::open_model is null: who runs the model?");
  }
  if (job.probe_tokens < 0) {
    return InvalidArgument("CalibrateJob::probe_tokens is {}, legal are 0 or more",
                           job.probe_tokens);
  }
  try {
    return offline::Measurement::Run(job);
  } catch (...) {  // no memory, or no thread
    return ExceptionStatus(job.out);
  }
}

}  // namespace moert
