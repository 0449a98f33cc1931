// Reads records with all threads of a pool.
#ifndef MOERT_LIB_SOURCE_READ_RECORDS_H_
#define MOERT_LIB_SOURCE_READ_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"

namespace moert {

/// Bytes of the buffer that a record is read into: a multiple of kRecordAlignment.
int64_t PlaceBytes(const ExpertSource& source, int layer, int expert, int version);

/// Bytes of a piece of a record that the source has in memory (the last piece may be smaller): few
/// enough that one record keeps all threads of a pool busy.
inline constexpr int64_t kRecordPieceBytes = 128 << 10;

/// A record and its destination.
struct RecordRead {
  int layer = 0;
  int expert = 0;
  std::byte* to = nullptr;  // PlaceBytes
};

/// Reads records on all threads, which share records that the source has in memory or reads in
/// pieces. *done: the status of each read; not set if the pool throws. An exception of a read
/// becomes its status.
void ReadRecords(const ExpertSource& source, int version, absl::Span<const RecordRead> reads,
                 ThreadPool* pool, std::vector<absl::Status>* done);

/// The first error.
absl::Status FirstError(absl::Span<const absl::Status> done);

}  // namespace moert

#endif  // MOERT_LIB_SOURCE_READ_RECORDS_H_
