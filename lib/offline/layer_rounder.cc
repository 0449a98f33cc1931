#include "offline/layer_rounder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>

#include "base/bf16.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "offline/encode_matrix_on.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::offline {
namespace {

// Experts in memory at a time, a thread.
constexpr int kExpertsPerThread = 2;

// Both encoders run on the pool's threads, which nothing may throw in. EncodeMatrix refuses what is
// not finite, and a rotation leaves that so.

// How matrices are rounded.
struct Rounding {
  QuantMethod method;
  bool hadamard;
  DeviceFits* device;
};

absl::Status EncodeWide(const MatrixLayout& layout, const Rounding& rounding,
                        absl::Span<float> weights, std::byte* record) {
  if (layout.scheme.is_bf16() && !rounding.hadamard) {
    return PackMatrixBf16(layout, weights, record);
  }
  try {
    if (rounding.hadamard) ApplyHadamard(layout.rows, layout.k, weights.data());
    return EncodeMatrixOn(rounding.device, layout, rounding.method, weights, record);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while quantizing");
  }
}

absl::Status EncodeStored(const MatrixLayout& layout, const Rounding& rounding,
                          const std::vector<uint16_t>& weights, std::byte* record) {
  if (layout.scheme.is_bf16() && !rounding.hadamard) {
    return PackMatrixBf16(layout, weights, record);
  }
  try {
    const auto wide = std::make_unique_for_overwrite<float[]>(weights.size());
    Bf16ToF32(weights.data(), static_cast<int64_t>(weights.size()), wide.get());
    return EncodeWide(layout, rounding, {wide.get(), weights.size()}, record);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while quantizing");
  }
}

// A matrix of an expert, stored or widened; both empty if it was copied or is not there.
struct Matrix {
  const char* name;
  const MatrixLayout& layout;
  const std::vector<uint16_t>& stored;
  std::vector<float>* wide;
};

absl::Status EncodeOne(const Matrix& m, const Rounding& rounding, std::byte* record) {
  absl::Status status;
  if (!m.stored.empty()) {
    status = EncodeStored(m.layout, rounding, m.stored, record);
  } else if (!m.wide->empty()) {
    status = EncodeWide(m.layout, rounding, absl::MakeSpan(*m.wide), record);
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", m.name, std::string(status.message())));
}

}  // namespace

absl::Status AtExpert(const absl::Status& status, const std::string& model, int layer, int expert) {
  return absl::Status(status.code(), fmt::format("{}: layer {}, expert {}: {}", model, layer,
                                                 expert, std::string(status.message())));
}

absl::Status LayerRounder::Write(int layer, int num_experts, int version,
                                 QuantMethod method) const {
  const int size = kExpertsPerThread * parts_.pool->num_threads();
  // Futures of std::async wait when they are forgotten: no thread outlives this call.
  auto reading = Read(layer, version, 0, std::min(num_experts, size));
  std::future<absl::Status> writing;
  for (int e = 0; e < num_experts; e += size) {
    absl::StatusOr<Chunk> chunk = reading.get();
    MOERT_RETURN_IF_ERROR(chunk.status());
    const int next = e + size;
    if (next < num_experts)
      reading = Read(layer, version, next, std::min(num_experts, next + size));
    absl::Status status = Round(layer, method, &*chunk);
    if (writing.valid()) status.Update(writing.get());
    MOERT_RETURN_IF_ERROR(status);
    if (parts_.cancelled && parts_.cancelled()) return absl::CancelledError("interrupted");
    parts_.advance(3 * static_cast<int64_t>(chunk->records.size()));
    writing = WriteChunk(layer, version, *std::move(chunk));
  }
  return writing.valid() ? writing.get() : absl::OkStatus();
}

std::future<absl::StatusOr<LayerRounder::Chunk>> LayerRounder::Read(int layer, int version,
                                                                    int begin, int end) const {
  return std::async(std::launch::async, [=, this]() -> absl::StatusOr<Chunk> {
    try {
      const size_t count = static_cast<size_t>(end - begin);
      Chunk chunk;
      chunk.begin = begin;
      chunk.weights.resize(count);
      chunk.wide.resize(count);
      chunk.layouts.resize(count);
      chunk.records.resize(count);
      for (size_t i = 0; i < count; ++i) {
        MOERT_RETURN_IF_ERROR(ReadOne(layer, version, i, &chunk));
      }
      return chunk;
    } catch (...) {
      return ExceptionStatus(parts_.model);
    }
  });
}

// Expert i of a chunk. What is stored as it is to be written goes into its record at once.
absl::Status LayerRounder::ReadOne(int layer, int version, size_t i, Chunk* chunk) const {
  const CheckpointExperts& experts = *parts_.experts;
  const int e = chunk->begin + static_cast<int>(i);
  MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, parts_.writer->Layout(layer, e, version));
  chunk->layouts[i] = layout;
  std::vector<std::byte>& record = chunk->records[i];
  record.assign(static_cast<size_t>(layout.bytes), std::byte{0});
  const ExpertFormat& stored = experts.stored(layer);
  if (layout.format == stored) return experts.ReadRecord(layer, e, layout, record.data());
  MOERT_RETURN_IF_ERROR(experts.ReadBiases(layer, e, layout, record.data()));
  if (stored == ExpertFormat::Uniform(Scheme{})) {
    return experts.ReadExpert(layer, e, &chunk->weights[i]);
  }
  ExpertMatrices& wide = chunk->wide[i];
  if (layout.contents.gate) {
    MOERT_RETURN_IF_ERROR(experts.ReadWidened(layer, e, Projection::kGate, &wide.gate));
  }
  MOERT_RETURN_IF_ERROR(experts.ReadWidened(layer, e, Projection::kUp, &wide.up));
  return experts.ReadWidened(layer, e, Projection::kDown, &wide.down);
}

absl::Status LayerRounder::Round(int layer, QuantMethod method, Chunk* chunk) const {
  const size_t count = chunk->weights.size();
  std::vector<absl::Status> outcomes(3 * count);
  parts_.pool->Run(static_cast<int64_t>(3 * count), [&](int64_t n, int) {
    const size_t i = static_cast<size_t>(n / 3);
    const RecordLayout& layout = chunk->layouts[i];
    const ExpertWeights& stored = chunk->weights[i];
    ExpertMatrices& wide = chunk->wide[i];
    const std::array<Matrix, 3> matrices = {{{"gate", layout.gate, stored.gate, &wide.gate},
                                             {"up", layout.up, stored.up, &wide.up},
                                             {"down", layout.down, stored.down, &wide.down}}};
    const Rounding rounding = {method, layout.format.hadamard, parts_.device};
    const absl::Status status =
        EncodeOne(matrices[static_cast<size_t>(n % 3)], rounding, chunk->records[i].data());
    outcomes[static_cast<size_t>(n)] =
        status.ok() ? status
                    : AtExpert(status, parts_.model, layer, chunk->begin + static_cast<int>(i));
  });
  chunk->weights.clear();
  chunk->wide.clear();
  for (const absl::Status& s : outcomes) MOERT_RETURN_IF_ERROR(s);
  return absl::OkStatus();
}

std::future<absl::Status> LayerRounder::WriteChunk(int layer, int version, Chunk chunk) const {
  return std::async(std::launch::async, [=, this, chunk = std::move(chunk)]() -> absl::Status {
    for (size_t i = 0; i < chunk.records.size(); ++i) {
      MOERT_RETURN_IF_ERROR(parts_.writer->WriteRecord(layer, chunk.begin + static_cast<int>(i),
                                                       version, chunk.records[i]));
    }
    return absl::OkStatus();
  });
}

}  // namespace moert::offline
