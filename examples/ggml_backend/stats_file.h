// Statistics that a person or a monitor can watch while llama.cpp runs.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STATS_FILE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STATS_FILE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "store.h"

namespace moert_ggml {

/// Writes the statistics of one model. The caller holds its lock.
class StatsFile {
 public:
  /// `path` empty: nothing is written.
  StatsFile(std::string path, std::string model)
      : path_(std::move(path)), model_(std::move(model)) {}

  /// A layer call of this many tokens begins; tokens are counted in the first layer. Writes once a
  /// second.
  void Count(int layer, int64_t tokens, const Store& store);
  /// Writes the rest.
  void Finish(const Store& store);

 private:
  using Time = std::chrono::steady_clock::time_point;
  void Write(Time now, const Store& store);

  const std::string path_;
  const std::string model_;
  std::string file_;     // that is written: the path, unless another model has it
  bool failed_ = false;  // which has been said
  int64_t tokens_ = 0;   // in all
  int64_t written_ = 0;  // of them, by the last time
  Time last_ = std::chrono::steady_clock::now();
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STATS_FILE_H_
