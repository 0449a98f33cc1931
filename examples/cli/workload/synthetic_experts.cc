#include "cli/workload/synthetic_experts.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "cli/workload/random_vectors.h"
#include "fmt/format.h"
#include "moert/thread_pool.h"
#include "moert/tools/env.h"
#include "util/aligned_buffer.h"
#include "util/file_writer.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

/// The schemes that mixed versions draw from by default.
constexpr const char* kMixedSchemes[] = {
    "w8a16_g128",      "w8a8",           "w4a16_g128_asym", "w4a8_g128",       "w4a16_g-1_asym",
    "w3a16_g128_asym", "w3a16_g-1_asym", "w2a16_g64_asym",  "w2a16_g128_asym", "w2a16_g-1_asym"};

/// Records of one version: `count` different ones, which experts share in turn.
struct Ring {
  std::vector<RecordLayout> layouts;  // by layer, or by expert
  bool by_expert = false;
  int64_t stride = 0;
  int64_t count = 0;
  util::AlignedBuffer bytes;
  std::shared_ptr<void> pinned;  // null: pageable. Unlocks the bytes before they go.
};

class SyntheticExperts final : public ExpertSource {
 public:
  SyntheticExperts(const Shape& shape, uint64_t seed, const SyntheticOptions& options)
      : shape_(shape), schemes_(options.schemes), seed_(seed) {
    name_ = fmt::format("{}:{}", shape.name, shape.spec.num_layers());
    for (const MoeLayerSpec& layer : shape.spec.layers) {
      first_.push_back(total_);
      total_ += layer.num_experts;
    }
  }
  ~SyntheticExperts() override {
    for (const std::string& path : paths_) ::unlink(path.c_str());
  }

  absl::Status Init(const Workload& workload, const SyntheticOptions& options) {
    for (const std::string& name : options.schemes) {
      MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
      MOERT_RETURN_IF_ERROR(AddVersion(scheme, options));
    }
    if (options.mixed > 0 && !options.directory.empty()) {
      return absl::InvalidArgumentError("mixed versions are in memory only");
    }
    std::vector<Scheme> drawn;
    for (const char* name : kMixedSchemes) drawn.push_back(*Scheme::Parse(name));
    if (!options.mixed_schemes.empty()) drawn.clear();
    for (const std::string& name : options.mixed_schemes) {
      MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
      drawn.push_back(scheme);
    }
    for (int i = 0; i < options.mixed; ++i) {
      MOERT_RETURN_IF_ERROR(AddMixed(i, drawn, options));
    }
    for (int l = 0; l < shape_.spec.num_layers(); ++l) {
      MOERT_ASSIGN_OR_RETURN(
          LayerConstants constants,
          MakeConstants(l, options.gate != nullptr ? options.gate(l) : workload.Gate(l)));
      constants_.push_back(std::move(constants));
    }
    if (!options.directory.empty()) {
      for (size_t v = 0; v < rings_.size(); ++v) MOERT_RETURN_IF_ERROR(WriteFile(v, options));
    }
    return absl::OkStatus();
  }

  const MoeModelSpec& model() const override { return shape_.spec; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return static_cast<int>(rings_.size()); }
  absl::string_view version_name(int version) const override { return schemes_[version]; }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    const Ring& ring = rings_[version];
    return ring.layouts[ring.by_expert ? first_[layer] + expert : layer];
  }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    if (!files_.empty()) {
      // Whole blocks, as direct I/O requires.
      const int64_t stride = rings_[version].stride;
      return files_[version]->Read((first_[layer] + expert) * stride, dst.first(stride));
    }
    std::memcpy(dst.data(), HostRecord(layer, expert, version),
                layout(layer, expert, version).bytes);
    return absl::OkStatus();
  }

  const std::byte* PinnedRecord(int layer, int expert, int version) const override {
    return rings_[version].pinned != nullptr ? HostRecord(layer, expert, version) : nullptr;
  }

  const std::byte* HostRecord(int layer, int expert, int version) const override {
    if (!files_.empty()) return nullptr;
    const Ring& ring = rings_[version];
    return ring.bytes.data() + (first_[layer] + expert) % ring.count * ring.stride;
  }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    return constants_[layer];
  }

 private:
  absl::Status AddVersion(const Scheme& scheme, const SyntheticOptions& options) {
    Ring ring;
    for (const MoeLayerSpec& layer : shape_.spec.layers) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                             ExpertRecordLayout(layer, ExpertFormat::Uniform(scheme)));
      ring.stride = std::max(ring.stride, util::RoundUp(layout.bytes, kRecordAlignment));
      ring.layouts.push_back(layout);
    }
    ring.count = std::clamp<int64_t>(options.memory_bytes / ring.stride, 1, total_);
    return Fill(std::move(ring), options);
  }

  absl::Status AddMixed(int index, const std::vector<Scheme>& schemes,
                        const SyntheticOptions& options) {
    std::vector<double> until;  // sums of proportions
    for (size_t k = 0; k < schemes.size(); ++k) {
      const double share = std::exp(1.5 * RandomNormal(MixKey(seed_, 104, index), k));
      until.push_back((k > 0 ? until.back() : 0) + share);
    }
    const auto draw = [&](uint64_t key) {
      const double at = until.back() * static_cast<double>(MixBits(key) >> 11) * 0x1p-53;
      return schemes[std::upper_bound(until.begin(), until.end() - 1, at) - until.begin()];
    };
    Ring ring;
    ring.by_expert = true;
    for (int l = 0; l < shape_.spec.num_layers(); ++l) {
      const MoeLayerSpec& layer = shape_.spec.layers[l];
      for (int e = 0; e < layer.num_experts; ++e) {
        const Scheme gate = draw(MixKey(seed_, 105, index, first_[l] + e));
        const Scheme down = draw(MixKey(seed_, 106, index, first_[l] + e));
        MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                               ExpertRecordLayout(layer, {gate, gate, down, false}));
        ring.stride = std::max(ring.stride, util::RoundUp(layout.bytes, kRecordAlignment));
        ring.layouts.push_back(layout);
      }
    }
    ring.count = total_;
    schemes_.push_back(fmt::format("mixed-{}", index));
    return Fill(std::move(ring), options);
  }

  absl::Status Fill(Ring ring, const SyntheticOptions& options) {
    MOERT_RETURN_IF_ERROR(ring.bytes.Reset(ring.count * ring.stride));
    MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool({}));
    pool->Run(ring.count, [&](int64_t i, int) {
      FillRecord(ring.layouts[ring.by_expert ? i : 0], MixKey(seed_, 101, rings_.size(), i),
                 ring.bytes.data() + i * ring.stride);
    });
    if (options.pin != nullptr) {
      MOERT_ASSIGN_OR_RETURN(ring.pinned, options.pin(ring.bytes.data(), ring.bytes.size()));
    }
    rings_.push_back(std::move(ring));
    return absl::OkStatus();
  }

  absl::StatusOr<LayerConstants> MakeConstants(int l, std::vector<float> gate) const {
    const MoeLayerSpec& layer = shape_.spec.layers[l];
    LayerConstants constants;
    constants.gate = std::move(gate);
    if (layer.routing.selection_bias) constants.selection_bias.assign(layer.num_experts, 0.0f);
    if (layer.routing.logit_bias) constants.logit_bias.assign(layer.num_experts, 0.0f);
    if (layer.shared_intermediate > 0) {
      MOERT_ASSIGN_OR_RETURN(constants.shared_layout, SharedRecordLayout(layer));
      constants.shared_expert.resize(constants.shared_layout.bytes);
      FillRecord(constants.shared_layout, MixKey(seed_, 102, l), constants.shared_expert.data());
      if (layer.shared_gate) {
        for (int64_t i = 0; i < layer.hidden; ++i) {
          constants.shared_gate.push_back(0.01f * RandomNormal(MixKey(seed_, 103, l), i));
        }
      }
    }
    return constants;
  }

  absl::Status WriteFile(size_t version, const SyntheticOptions& options) {
    const Ring& ring = rings_[version];
    const std::string path =
        fmt::format("{}/moert-synthetic-{}-{}.bin", options.directory, ::getpid(), paths_.size());
    std::error_code error;
    const auto space = std::filesystem::space(options.directory, error);
    if (!error && static_cast<int64_t>(space.available) < total_ * ring.stride) {
      return absl::ResourceExhaustedError(fmt::format("{}: {} experts take {} bytes, {} are free",
                                                      options.directory, total_,
                                                      total_ * ring.stride, space.available));
    }
    MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<util::FileWriter> writer,
                           util::FileWriter::Create(path));
    paths_.push_back(path);
    for (int64_t i = 0; i < total_; ++i) {
      MOERT_RETURN_IF_ERROR(writer->Append(
          absl::MakeConstSpan(ring.bytes.data() + i % ring.count * ring.stride, ring.stride)));
      if (options.progress) options.progress(i + 1, total_);
    }
    MOERT_RETURN_IF_ERROR(writer->Close());
    MOERT_ASSIGN_OR_RETURN(auto file, Env::Default()->Open(path, FileAccess::kDirect));
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  const Shape shape_;
  std::vector<std::string> schemes_;
  const uint64_t seed_;
  std::string name_;
  std::vector<int64_t> first_;
  int64_t total_ = 0;
  std::vector<Ring> rings_;
  std::vector<LayerConstants> constants_;
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<RandomAccessFile>> files_;  // by version; empty: from memory
};

/// Fills [begin, end) of a record with `word(i)`, 8 bytes each.
template <typename Word>
void FillWords(std::byte* begin, int64_t bytes, Word word) {
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t w = word(i / 8);
    std::memcpy(begin + i, &w, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
  }
}

constexpr uint64_t kEachByte = 0x0101010101010101u, kEachHalf = 0x0001000100010001u,
                   kEachWord = 0x0000000100000001u;

/// A power of two as scales of a type, as many as 8 bytes hold. Those of kE4M3 are ones: the scale
/// of the matrix is the power.
uint64_t Scales(ScaleType type, int exponent) {
  switch (type) {
    case ScaleType::kF16:
      return kEachHalf * static_cast<uint64_t>((exponent + 15) << 10);
    case ScaleType::kF32:
      return kEachWord * static_cast<uint64_t>((exponent + 127) << 23);
    case ScaleType::kE8M0:
      return kEachByte * static_cast<uint64_t>(exponent + 127);
    case ScaleType::kE4M3:
      return kEachByte * 0x38;
    default:
      return kEachHalf * static_cast<uint64_t>((exponent + 127) << 7);
  }
}

/// Weights of about 2^-9: codes span about [-1, 1) * 2^(bits - 1) around their zero, and e4m3 codes
/// [-2, 2].
void FillScales(const MatrixLayout& m, std::byte* record) {
  const int bits = m.scheme.weight_bits - 1, exponent = m.scheme.fp8 ? -10 : -9 - bits;
  const ScaleType type = m.scheme.scales;
  const int64_t count = m.groups() * m.padded_rows, bytes = count * ScaleBytes(type);
  const auto fill = [&](int64_t at, int64_t size, uint64_t word) {
    FillWords(record + at, size, [word](int64_t) { return word; });
  };
  fill(m.scale_offset, bytes, Scales(type, exponent));
  if (m.scheme.zero_points) {
    fill(m.zero_offset(), count, kEachByte << bits);
  } else if (!m.scheme.symmetric) {
    fill(m.zero_offset(), bytes, Scales(type, exponent + bits));
  }
  if (type == ScaleType::kE4M3) {
    fill(m.matrix_scale_offset(), ScaleBytes(ScaleType::kF32), Scales(ScaleType::kF32, exponent));
  }
}

}  // namespace

void FillRecord(const RecordLayout& layout, uint64_t seed, std::byte* record) {
  std::memset(record, 0, layout.bytes);
  int part = 0;
  for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
    const uint64_t key = MixKey(seed, part++);
    const Scheme& scheme = m->scheme;
    FillWords(record + m->weight_offset, m->weight_bytes, [&](int64_t i) {
      const uint64_t bits = MixBits(key + static_cast<uint64_t>(i));
      // Signs and mantissas at random, exponents from 2^-15 to 2^-8.
      if (scheme.is_bf16()) return (bits & 0x83ff83ff83ff83ffu) | 0x3800380038003800u;
      return scheme.fp8 ? bits & ~(kEachByte << 6) : bits;  // below 2: no NaN
    });
    if (m->scale_bytes > 0) FillScales(*m, record);
  }
}

absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeSyntheticExperts(
    const Shape& shape, const Workload& workload, uint64_t seed, const SyntheticOptions& options) {
  auto source = std::make_shared<SyntheticExperts>(shape, seed, options);
  MOERT_RETURN_IF_ERROR(source->Init(workload, options));
  return source;
}

}  // namespace moert::cli
