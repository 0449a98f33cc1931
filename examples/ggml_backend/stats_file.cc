#include "stats_file.h"

#include <cstdio>
#include <fstream>
#include <mutex>
#include <set>

namespace moert_ggml {
namespace {

constexpr std::chrono::seconds kInterval{1};

// Files that models of the process write. Leaked: models may be destroyed while the process exits.
struct Taken {
  std::mutex mutex;
  std::set<std::string> paths;
};
Taken& TakenFiles() {
  static auto* taken = new Taken;
  return *taken;
}

// The file, or, if another model writes it, one with a number appended to its name.
std::string Take(const std::string& path) {
  const std::lock_guard<std::mutex> lock(TakenFiles().mutex);
  std::string mine = path;
  for (int number = 2; !TakenFiles().paths.insert(mine).second; ++number) {
    mine = path + "." + std::to_string(number);
  }
  return mine;
}

void Give(const std::string& path) {
  const std::lock_guard<std::mutex> lock(TakenFiles().mutex);
  TakenFiles().paths.erase(path);
}

bool Put(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  std::ofstream file(next);
  file << text;
  file.close();
  return file.good() && std::rename(next.c_str(), path.c_str()) == 0;
}

}  // namespace

void StatsFile::Count(int layer, int64_t tokens, const Store& store) {
  if (layer != 0 || path_.empty()) return;
  if (file_.empty()) file_ = Take(path_);  // before another model ends that has the name until then
  const Time now = std::chrono::steady_clock::now();
  if (now - last_ >= kInterval) Write(now, store);
  tokens_ += tokens;
}

void StatsFile::Finish(const Store& store) {
  if (path_.empty()) return;
  Write(std::chrono::steady_clock::now(), store);
  Give(file_);
  file_.clear();
}

void StatsFile::Write(Time now, const Store& store) {
  const double seconds = std::chrono::duration<double>(now - last_).count();
  char line[160];
  std::snprintf(line, sizeof line, "%lld tokens, %.1f a second now; ",
                static_cast<long long>(tokens_), static_cast<double>(tokens_ - written_) / seconds);
  written_ = tokens_;
  last_ = now;
  if (file_.empty()) file_ = Take(path_);
  const std::string text =
      "# " + model_ + ": " + line + store.Statistics() + "\n" + store.Metrics(model_);
  if (Put(file_, text) || failed_) return;
  failed_ = true;
  Say("MOERT_STATS_FILE: %s cannot be written", file_.c_str());
}

}  // namespace moert_ggml
