#include "source/read_records.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/checked_math.h"
#include "base/exception_status.h"

namespace moert {
namespace {

/// A piece of the record of a read, or all of it.
struct Piece {
  size_t read = 0;
  int64_t number = kWhole;
  static constexpr int64_t kWhole = -1;
};

int64_t PiecesOf(const ExpertSource& source, int version, const RecordRead& read) {
  if (source.HostRecord(read.layer, read.expert, version) == nullptr) {
    return source.num_pieces(read.layer, read.expert, version);
  }
  return CeilDiv(source.layout(read.layer, read.expert, version).bytes, kRecordPieceBytes);
}

/// Cuts records into pieces; whole records if each thread has many.
std::vector<Piece> Cut(const ExpertSource& source, int version, absl::Span<const RecordRead> reads,
                       int threads) {
  constexpr int64_t kMany = 4;
  std::vector<Piece> pieces;
  const bool whole = std::ssize(reads) >= kMany * threads;
  for (size_t r = 0; r < reads.size(); ++r) {
    const int64_t of = whole ? 1 : PiecesOf(source, version, reads[r]);
    for (int64_t i = 0; i < of; ++i) pieces.push_back({r, of > 1 ? i : Piece::kWhole});
  }
  return pieces;
}

absl::Status Read(const ExpertSource& source, int version, const RecordRead& read, int64_t piece) {
  const auto& [layer, expert, to] = read;
  const auto bytes = static_cast<size_t>(PlaceBytes(source, layer, expert, version));
  if (piece == Piece::kWhole) return source.ReadRecord(layer, expert, version, {to, bytes});
  const std::byte* const from = source.HostRecord(layer, expert, version);
  if (from == nullptr) return source.ReadPiece(layer, expert, version, piece, {to, bytes});
  const int64_t first = piece * kRecordPieceBytes;
  std::memcpy(to + first, from + first,
              std::min(kRecordPieceBytes, source.layout(layer, expert, version).bytes - first));
  return absl::OkStatus();
}

}  // namespace

int64_t PlaceBytes(const ExpertSource& source, int layer, int expert, int version) {
  return RoundUp(source.layout(layer, expert, version).bytes, kRecordAlignment);
}

void ReadRecords(const ExpertSource& source, int version, absl::Span<const RecordRead> reads,
                 ThreadPool* pool, std::vector<absl::Status>* done) {
  done->assign(reads.size(), absl::UnknownError("not read"));
  const std::vector<Piece> pieces = Cut(source, version, reads, pool->num_threads());
  std::vector<absl::Status> ended(pieces.size());
  pool->Run(std::ssize(pieces), [&](int64_t i, int) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    try {
      ended[static_cast<size_t>(i)] = Read(source, version, reads[piece.read], piece.number);
    } catch (...) {
      ended[static_cast<size_t>(i)] = ExceptionStatus("reading a record");
    }
  });
  for (absl::Status& record : *done) record = absl::OkStatus();
  for (size_t i = 0; i < pieces.size(); ++i) (*done)[pieces[i].read].Update(ended[i]);
}

absl::Status FirstError(absl::Span<const absl::Status> done) {
  absl::Status status;
  for (const absl::Status& one : done) status.Update(one);
  return status;
}

}  // namespace moert
