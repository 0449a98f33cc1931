// PinnedRecords: for sources whose records lie in page-locked host memory already, in the layout
// that they are read in. The CUDA backend then copies them to the device from where they are and
// keeps no copy of its own.
#ifndef MOERT_PINNED_RECORDS_H_
#define MOERT_PINNED_RECORDS_H_

#include <cstddef>

namespace moert {

/// An ExpertSource implements this too. Thread-safe, as ReadRecord is.
class PinnedRecords {
 public:
  /// Where the record lies, at a multiple of kRecordAlignment, for as long as the source lives;
  /// null: it has to be read.
  virtual const std::byte* PinnedRecord(int layer, int expert, int version) const = 0;

 protected:
  ~PinnedRecords() = default;
};

}  // namespace moert

#endif  // MOERT_PINNED_RECORDS_H_
