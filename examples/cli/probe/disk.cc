// Disk rates, by the way that records are read.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "cli/probe/parts.h"
#include "fmt/format.h"
#include "moert/tools/env.h"
#include "util/aligned_buffer.h"
#include "util/file_writer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr int64_t kSizes[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr int kThreads[] = {1, 2, 4};
constexpr int64_t kMaxRead = int64_t{256} << 20;  // bytes of one measurement
constexpr double kMaxSeconds = 0.25;              // of one
constexpr double kMaxWriting = 8;
constexpr int64_t kLeastFile = int64_t{64} << 20;

/// Removes the file when it dies.
struct Scratch {
  std::string path;
  ~Scratch() { ::unlink(path.c_str()); }
};

/// At most `bytes`, fewer on a slow disk; returns how many.
absl::StatusOr<int64_t> WriteScratch(const std::string& path, int64_t bytes) {
  MOERT_ASSIGN_OR_RETURN(const auto writer, util::FileWriter::Create(path));
  std::vector<uint64_t> chunk((4 << 20) / 8);
  std::mt19937_64 rng(1);
  for (uint64_t& word : chunk) word = rng();
  const auto data = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(chunk.data()),
                                        chunk.size() * sizeof(uint64_t));
  const Until slow(kMaxWriting);
  while (writer->size() < bytes && (writer->size() < kLeastFile || !slow.passed())) {
    MOERT_RETURN_IF_ERROR(writer->Append(data));
  }
  const int64_t size = writer->size();
  MOERT_RETURN_IF_ERROR(writer->Close());
  return size;
}

/// Takes the file out of the page cache.
void Forget(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

struct Reads {
  const RandomAccessFile* file;
  int64_t size;                  // of each read
  std::vector<int64_t> offsets;  // in order
};

struct Done {
  double bytes_per_s = 0;
  size_t reads = 0;
};

/// As many of the reads as there is time for, by `threads` at once.
absl::StatusOr<Done> ReadAll(const Reads& reads, int threads) {
  std::vector<util::AlignedBuffer> buffers(threads);
  for (util::AlignedBuffer& b : buffers) MOERT_RETURN_IF_ERROR(b.Reset(reads.size));
  std::atomic<size_t> next{0}, done{0};
  const Until slow(kMaxSeconds);
  std::mutex mu;
  absl::Status failure;
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> readers;  // joined at the end, also where one cannot start
    for (int t = 0; t < threads; ++t) {
      readers.emplace_back([&, t] {
        for (size_t i = next++; i < reads.offsets.size(); i = next++) {
          ++done;
          const absl::Status status = reads.file->Read(
              reads.offsets[i], absl::MakeSpan(buffers[t].data(), buffers[t].size()));
          if (status.ok() && !slow.passed()) continue;
          if (status.ok()) return;
          std::lock_guard<std::mutex> lock(mu);
          failure.Update(status);
        }
      });
    }
  }
  MOERT_RETURN_IF_ERROR(failure);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return Done{static_cast<double>(reads.size) * static_cast<double>(done) / seconds.count(), done};
}

}  // namespace

absl::StatusOr<std::vector<DiskRate>> ProbeDisk(const std::string& directory, int64_t file_bytes,
                                                int repeats, const Until& until) {
  const Scratch scratch{fmt::format("{}/moert-probe-{}.bin", directory, ::getpid())};
  MOERT_ASSIGN_OR_RETURN(file_bytes, WriteScratch(scratch.path, file_bytes));
  MOERT_ASSIGN_OR_RETURN(const auto direct,
                         Env::Default()->Open(scratch.path, FileAccess::kDirect));
  MOERT_ASSIGN_OR_RETURN(const auto buffered,
                         Env::Default()->Open(scratch.path, FileAccess::kBuffered));
  std::vector<DiskRate> rates;
  std::vector<std::vector<double>> samples;
  for (const int64_t size : kSizes) {
    for (const int threads : kThreads) {
      for (const char* access : {"direct", "cold", "cached"}) {
        rates.push_back({size, threads, access, {}});
      }
    }
  }
  samples.resize(rates.size());
  std::mt19937_64 rng(2);
  for (int r = 0; r < repeats && (r == 0 || !until.passed()); ++r) {
    for (size_t i = 0; i < rates.size(); ++i) {
      const DiskRate& rate = rates[i];
      std::vector<int64_t> offsets(file_bytes / rate.bytes);
      for (size_t n = 0; n < offsets.size(); ++n) offsets[n] = static_cast<int64_t>(n) * rate.bytes;
      std::shuffle(offsets.begin(), offsets.end(), rng);
      offsets.resize(
          std::clamp<int64_t>(kMaxRead / rate.bytes, 1, static_cast<int64_t>(offsets.size())));
      const RandomAccessFile* file = rate.access == "direct" ? direct.get() : buffered.get();
      if (rate.access == "cold") Forget(scratch.path);
      Reads reads{file, rate.bytes, std::move(offsets)};
      if (rate.access == "cached") {
        MOERT_ASSIGN_OR_RETURN(const Done before, ReadAll(reads, 1));
        reads.offsets.resize(before.reads);
      }
      MOERT_ASSIGN_OR_RETURN(const Done done, ReadAll(reads, rate.threads));
      samples[i].push_back(done.bytes_per_s);
    }
  }
  for (size_t i = 0; i < rates.size(); ++i) rates[i].bytes_per_s = SpreadOf(samples[i]);
  return rates;
}

}  // namespace moert::cli
