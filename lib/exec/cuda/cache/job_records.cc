#include "exec/cuda/cache/job_records.h"

#include <algorithm>
#include <chrono>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/status_macros.h"

namespace moert::cuda {
namespace {

/// The most records that are in scratch memory at once because pinned memory has no place for them.
constexpr size_t kMostScratch = 8;

/// Whether the source has all parts of an opaque record in memory.
bool HasParts(const ExpertSource& source, ExpertKey key, int version) {
  const auto parts = static_cast<int>(source.layout(key.layer, key.expert, version).parts.size());
  int p = 0;
  while (p < parts && source.HostPart(key.layer, key.expert, version, p) != nullptr) ++p;
  return p > 0 && p == parts;
}

}  // namespace

absl::Status JobRecords::Check() const {
  const MoeModelSpec& model = records_->model();
  for (int l = 0; l < model.num_layers() && !records_->moves(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      if (records_->KeptRecord({l, e}, version_) != nullptr) continue;
      return FailedPrecondition("layer {} expert {}: its record is not in host memory", l, e);
    }
  }
  return absl::OkStatus();
}

std::byte* JobRecords::Room(ExpertKey key, std::byte* place) {
  if (place != nullptr) return place;
  if (scratch_used_ == kMostScratch) return nullptr;
  const int64_t bytes = PlaceBytes(*records_, key.layer, key.expert, version_);
  if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
  Buffer& buffer = scratch_[scratch_used_];
  if (buffer.bytes() < bytes) {
    absl::StatusOr<Buffer> made = Buffer::Pageable(bytes);
    if (!made.ok()) return nullptr;
    buffer = *std::move(made);
  }
  ++scratch_used_;
  return buffer.data();
}

absl::Status JobRecords::Find(int layer, absl::Span<const CpuJobExpert> experts,
                              std::vector<const std::byte*>* found) {
  found->clear();
  reads_.clear();
  scratch_used_ = 0;
  in_place_ = 0;
  for (const CpuJobExpert& expert : experts) {
    const ExpertKey key{layer, expert.expert};
    if (!records_->moves()) {
      found->push_back(records_->KeptRecord(key, version_));
      continue;
    }
    const std::byte* const host = records_->source().HostRecord(layer, expert.expert, version_);
    const bool in_memory = host != nullptr || HasParts(records_->source(), key, version_);
    const PinnedSet::Found at = records_->Find(key, in_memory);
    if (at.place == nullptr && in_memory) {
      found->push_back(host);
      ++in_place_;
      continue;
    }
    std::byte* to = at.place;
    if (!at.there) {
      to = Room(key, at.place);
      if (to == nullptr) break;
      reads_.push_back({layer, expert.expert, to});
    }
    found->push_back(to);
  }
  MOERT_RETURN_IF_ERROR(ReadAll());
  if (!found->empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError("no memory to read a record for the CPU");
}

absl::Status JobRecords::ReadAll() {
  if (reads_.empty()) {
    if (in_place_ > 0) Measure(0);
    return absl::OkStatus();
  }
  const auto begin = std::chrono::steady_clock::now();
  done_.clear();
  const absl::Cleanup end = [&] {  // also reports failed reads
    for (size_t i = 0; i < reads_.size(); ++i) {
      const bool ok = i < done_.size() && done_[i].ok();
      records_->EndRead({reads_[i].layer, reads_[i].expert}, ok);
    }
  };
  ReadRecords(records_->source(), version_, reads_, pool_, &done_);
  for (const RecordRead& read : reads_) {
    bytes_.fetch_add(records_->layout(read.layer, read.expert, version_).bytes,
                     std::memory_order_relaxed);
  }
  Measure(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return FirstError(done_);
}

void JobRecords::Measure(int64_t took_ns) {
  constexpr int64_t kLast = 16;  // the new value weighs 1 / kLast in the running mean
  job_ns_ += took_ns;
  const int64_t each = took_ns / (std::ssize(reads_) + in_place_), mean = read_ns();
  read_ns_.store(mean == 0 ? each : mean + (each - mean) / kLast, std::memory_order_relaxed);
}

int64_t JobRecords::EndJob() {
  if (records_->moves()) records_->EndJob();
  return std::exchange(job_ns_, 0);
}

}  // namespace moert::cuda
