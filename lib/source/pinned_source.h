// A source whose records lie in memory from an allocator.
#ifndef MOERT_LIB_SOURCE_PINNED_SOURCE_H_
#define MOERT_LIB_SOURCE_PINNED_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moert/allocator.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "source/read_records.h"

namespace moert {

class PinnedSource final : public ExpertSource {
 public:
  PinnedSource(std::shared_ptr<const ExpertSource> source, std::shared_ptr<HostAllocator> allocator)
      : source_(std::move(source)), allocator_(std::move(allocator)) {
    for (const MoeLayerSpec& layer : model().layers) {
      first_.push_back(experts_);
      experts_ += layer.num_experts;
    }
    records_.resize(experts_ * num_versions());
  }
  ~PinnedSource() override {
    for (const auto& [memory, bytes] : memory_) allocator_->Free(memory, bytes);
  }

  struct ReadOptions {
    int64_t bytes = -1;
    int threads = 0;
    bool there = false;  // what the allocator gives holds the records already
    bool locked = true;  // page-locked
    std::function<bool(int64_t done_bytes, int64_t total_bytes)> progress;
  };
  absl::Status Read(const ReadOptions& options);
  /// The bytes of all records that do not have page-locked memory yet.
  int64_t TotalBytes() const;

  const MoeModelSpec& model() const override { return source_->model(); }
  const std::string& name() const override { return source_->name(); }
  int num_versions() const override { return source_->num_versions(); }
  absl::string_view version_name(int version) const override {
    return source_->version_name(version);
  }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    return source_->layout(layer, expert, version);
  }
  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    const std::byte* record = HostRecord(layer, expert, version);
    if (record == nullptr) return source_->ReadRecord(layer, expert, version, dst);
    std::memcpy(dst.data(), record, layout(layer, expert, version).bytes);
    return absl::OkStatus();
  }
  const std::byte* PinnedRecord(int layer, int expert, int version) const override {
    const std::byte* own = records_[Index(layer, expert, version)];
    return own != nullptr && locked_ ? own : source_->PinnedRecord(layer, expert, version);
  }
  const std::byte* HostRecord(int layer, int expert, int version) const override {
    const std::byte* own = records_[Index(layer, expert, version)];
    return own != nullptr ? own : source_->HostRecord(layer, expert, version);
  }
  const std::byte* HostPart(int layer, int expert, int version, int part) const override {
    if (records_[Index(layer, expert, version)] == nullptr) {
      return source_->HostPart(layer, expert, version, part);
    }
    return ExpertSource::HostPart(layer, expert, version, part);
  }
  int64_t num_pieces(int layer, int expert, int version) const override {
    return source_->num_pieces(layer, expert, version);
  }
  absl::Status ReadPiece(int layer, int expert, int version, int64_t piece,
                         absl::Span<std::byte> dst) const override {
    return source_->ReadPiece(layer, expert, version, piece, dst);
  }
  int64_t scratch_bytes() const override { return source_->scratch_bytes(); }
  const std::function<absl::Status(const OpaqueProduct&)>* product() const override {
    return source_->product();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    return source_->ReadConstants(layer);
  }

 private:
  size_t Index(int layer, int expert, int version) const {
    return static_cast<size_t>(experts_ * version + first_[layer] + expert);
  }
  int64_t RecordBytes(int layer, int expert, int version) const {
    if (source_->PinnedRecord(layer, expert, version) != nullptr) return 0;  // there already
    return PlaceBytes(*this, layer, expert, version);
  }
  int64_t LayerBytes(int layer, int version) const {
    int64_t bytes = 0;
    for (int e = 0; e < model().layers[layer].num_experts; ++e) {
      bytes += RecordBytes(layer, e, version);
    }
    return bytes;
  }
  /// pool null: the records are there.
  absl::Status ReadLayer(int layer, int version, int64_t bytes, ThreadPool* pool);

  const std::shared_ptr<const ExpertSource> source_;
  const std::shared_ptr<HostAllocator> allocator_;
  bool locked_ = true;
  int64_t experts_ = 0;         // of all layers
  std::vector<int64_t> first_;  // of each layer
  std::vector<const std::byte*> records_;
  std::vector<std::pair<void*, int64_t>> memory_;
};

}  // namespace moert

#endif  // MOERT_LIB_SOURCE_PINNED_SOURCE_H_
