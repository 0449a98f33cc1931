// An Env whose reads can be made to fail or to return damaged bytes.
#ifndef MOERT_TESTS_SUPPORT_FAULT_ENV_H_
#define MOERT_TESTS_SUPPORT_FAULT_ENV_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "moert/tools/env.h"

namespace moert::test {

class FaultEnv final : public Env {
 public:
  /// The read with this number (from 0, over all files) fails; -1: none.
  std::atomic<int64_t> fail_read{-1};
  /// Likewise for opening.
  std::atomic<int64_t> fail_open{-1};
  std::atomic<int64_t> reads{0};
  std::atomic<int64_t> opens{0};

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess access) override {
    if (opens.fetch_add(1) == fail_open) return absl::UnavailableError(path + ": injected open");
    auto file = Env::Default()->Open(path, access);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file));
  }

 private:
  class File final : public RandomAccessFile {
   public:
    File(FaultEnv* env, std::unique_ptr<RandomAccessFile> file)
        : env_(env), file_(std::move(file)) {}
    absl::Status Read(int64_t offset, absl::Span<std::byte> dst) const override {
      if (env_->reads.fetch_add(1) == env_->fail_read) {
        return absl::UnavailableError(path() + ": injected read");
      }
      return file_->Read(offset, dst);
    }
    int64_t size() const override { return file_->size(); }
    const std::string& path() const override { return file_->path(); }

   private:
    FaultEnv* const env_;
    const std::unique_ptr<RandomAccessFile> file_;
  };
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_FAULT_ENV_H_
