#include "source/read_records.h"

#include "base/checked_math.h"
#include "base/exception_status.h"

namespace moert {

int64_t PlaceBytes(const ExpertSource& source, int layer, int expert, int version) {
  return RoundUp(source.layout(layer, expert, version).bytes, kRecordAlignment);
}

void ReadRecords(const ExpertSource& source, int version, absl::Span<const RecordRead> reads,
                 ThreadPool* pool, std::vector<absl::Status>* done) {
  done->assign(reads.size(), absl::UnknownError("not read"));
  pool->Run(static_cast<int64_t>(reads.size()), [&](int64_t i, int) {
    const RecordRead& read = reads[static_cast<size_t>(i)];
    absl::Status& ended = (*done)[static_cast<size_t>(i)];
    try {
      const int64_t bytes = PlaceBytes(source, read.layer, read.expert, version);
      ended = source.ReadRecord(read.layer, read.expert, version,
                                {read.to, static_cast<size_t>(bytes)});
    } catch (...) {
      ended = ExceptionStatus("reading a record");
    }
  });
}

absl::Status FirstError(absl::Span<const absl::Status> done) {
  absl::Status status;
  for (const absl::Status& one : done) status.Update(one);
  return status;
}

}  // namespace moert
