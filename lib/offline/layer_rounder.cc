#include "offline/layer_rounder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <new>

#include "base/bf16.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "offline/cancelled.h"
#include "offline/expert_quantizer.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::offline {
namespace {

// Experts in memory at a time, per thread.
constexpr int kExpertsPerThread = 2;
constexpr size_t kReaders = 4;

// Both encoders run on the pool's threads, in which no exception may escape. EncodeMatrix refuses
// values that are not finite, and a rotation keeps them so.

// The rounding method for matrices.
struct Encoding {
  QuantMethod method;
  bool hadamard;
  OfflineDevice* device;
};

absl::Status EncodeWide(const MatrixLayout& layout, const Encoding& encoding,
                        absl::Span<float> weights, std::byte* record) {
  if (layout.scheme.is_bf16() && !encoding.hadamard) return PackMatrixBf16(layout, weights, record);
  try {
    if (encoding.hadamard) ApplyHadamard(layout.rows, layout.k, weights.data());
    return EncodeMatrixOn(encoding.device, layout, encoding.method, weights, record);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while quantizing");
  }
}

absl::Status EncodeStored(const MatrixLayout& layout, const Encoding& encoding,
                          const std::vector<uint16_t>& weights, std::byte* record) {
  if (layout.scheme.is_bf16() && !encoding.hadamard) return PackMatrixBf16(layout, weights, record);
  try {
    const auto wide = std::make_unique_for_overwrite<float[]>(weights.size());
    Bf16ToF32(weights.data(), static_cast<int64_t>(weights.size()), wide.get());
    return EncodeWide(layout, encoding, {wide.get(), weights.size()}, record);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while quantizing");
  }
}

// A matrix of an expert, stored or widened; both are empty if it was copied or does not exist.
struct Matrix {
  const char* name;
  const MatrixLayout& layout;
  const std::vector<uint16_t>& stored;
  std::vector<float>* wide;
};

absl::Status EncodeOne(const Matrix& m, const Encoding& encoding, std::byte* record) {
  absl::Status status;
  if (!m.stored.empty()) {
    status = EncodeStored(m.layout, encoding, m.stored, record);
  } else if (!m.wide->empty()) {
    status = EncodeWide(m.layout, encoding, absl::MakeSpan(*m.wide), record);
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", m.name, std::string(status.message())));
}

}  // namespace

absl::Status AtExpert(const absl::Status& status, const std::string& model, int layer, int expert) {
  return absl::Status(status.code(), fmt::format("{}: layer {}, expert {}: {}", model, layer,
                                                 expert, std::string(status.message())));
}

std::vector<LayerRounder::Part> LayerRounder::Cut(absl::Span<const Piece> pieces) const {
  const int size = kExpertsPerThread * parts_.pool->num_threads();
  std::vector<Part> parts;
  for (const Piece& piece : pieces) {
    for (int e = 0; e < piece.num_experts; e += size) {
      parts.push_back({&piece, e, std::min(piece.num_experts, e + size)});
    }
  }
  return parts;
}

absl::Status LayerRounder::Write(absl::Span<const Piece> pieces, const PieceDone& done) const {
  const std::vector<Part> parts = Cut(pieces);
  // Futures of std::async wait on destruction: no thread outlives this call.
  const auto read = [&](size_t i) {
    return i == parts.size() ? std::future<absl::StatusOr<Chunk>>()
                             : std::async(std::launch::async, [&, i] { return Read(parts[i]); });
  };
  auto reading = read(0);
  std::future<absl::Status> writing;
  for (size_t i = 0; i < parts.size(); ++i) {
    absl::StatusOr<Chunk> chunk = reading.get();
    MOERT_RETURN_IF_ERROR(chunk.status());
    reading = read(i + 1);
    absl::Status status = Round(&*chunk);
    if (writing.valid()) status.Update(writing.get());
    MOERT_RETURN_IF_ERROR(status);
    MOERT_RETURN_IF_ERROR(CheckWanted(parts_.cancelled));
    parts_.advance(3 * static_cast<int64_t>(chunk->records.size()));
    writing = std::async(std::launch::async,
                         [&, rounded = *std::move(chunk)] { return WriteChunk(rounded, done); });
  }
  return writing.valid() ? writing.get() : absl::OkStatus();
}

absl::StatusOr<LayerRounder::Chunk> LayerRounder::Read(const Part& part) const try {
  const size_t count = static_cast<size_t>(part.end - part.begin);
  Chunk chunk;
  chunk.part = part;
  chunk.weights.resize(count);
  chunk.wide.resize(count);
  chunk.layouts.resize(count);
  chunk.records.resize(count);
  // A single reader would be slower than the threads that round.
  const auto some = [&](size_t first) -> absl::Status {
    try {
      for (size_t i = first; i < count; i += kReaders) MOERT_RETURN_IF_ERROR(ReadOne(i, &chunk));
      return absl::OkStatus();
    } catch (...) {
      return ExceptionStatus(parts_.model);
    }
  };
  std::vector<std::future<absl::Status>> others;
  for (size_t r = 1; r < std::min(kReaders, count); ++r) {
    others.push_back(std::async(std::launch::async, some, r));
  }
  absl::Status status = some(0);
  for (auto& other : others) status.Update(other.get());
  MOERT_RETURN_IF_ERROR(status);
  return chunk;
} catch (...) {
  return ExceptionStatus(parts_.model);
}

// Reads expert i of a chunk. Matrices that are stored in their final form go directly into the
// record.
absl::Status LayerRounder::ReadOne(size_t i, Chunk* chunk) const {
  const CheckpointExperts& experts = *parts_.experts;
  const int layer = chunk->part.piece->layer, e = chunk->part.begin + static_cast<int>(i);
  MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                         parts_.writer->Layout(layer, e, chunk->part.piece->version));
  chunk->layouts[i] = layout;
  std::vector<std::byte>& record = chunk->records[i];
  record.assign(layout.bytes, std::byte{0});
  const ExpertFormat& stored = experts.stored(layer, e);
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

absl::Status LayerRounder::Round(Chunk* chunk) const {
  const Piece& piece = *chunk->part.piece;
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
    const Encoding encoding = {piece.method, layout.format.hadamard, parts_.device};
    const absl::Status status = EncodeOne(matrices[n % 3], encoding, chunk->records[i].data());
    outcomes[n] = status.ok() ? status
                              : AtExpert(status, parts_.model, piece.layer,
                                         chunk->part.begin + static_cast<int>(i));
  });
  chunk->weights.clear();
  chunk->wide.clear();
  for (const absl::Status& s : outcomes) MOERT_RETURN_IF_ERROR(s);
  return absl::OkStatus();
}

absl::Status LayerRounder::WriteChunk(const Chunk& chunk, const PieceDone& done) const try {
  const Piece& piece = *chunk.part.piece;
  for (size_t i = 0; i < chunk.records.size(); ++i) {
    MOERT_RETURN_IF_ERROR(parts_.writer->WriteRecord(
        piece.layer, chunk.part.begin + static_cast<int>(i), piece.version, chunk.records[i]));
  }
  return done && chunk.part.end == piece.num_experts ? done(piece) : absl::OkStatus();
} catch (...) {
  return ExceptionStatus(parts_.model);
}

}  // namespace moert::offline
