#include "stats_file.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>

namespace moert_ggml {
namespace {

constexpr std::chrono::seconds kInterval{1};

// Models of the process share the file.
struct Texts {
  std::mutex mutex;
  std::map<std::string, std::string> of_model;
  bool failed = false;
};

void Put(const std::string& path, const std::string& model, const std::string& text) {
  static auto* texts = new Texts;
  const std::lock_guard<std::mutex> lock(texts->mutex);
  texts->of_model[model] = text;
  const std::string next = path + ".new";
  std::ofstream file(next);
  for (const auto& [name, its] : texts->of_model) file << its;
  file.close();
  const bool ok = file.good() && std::rename(next.c_str(), path.c_str()) == 0;
  if (!ok && !texts->failed) Say("MOERT_STATS_FILE: %s cannot be written", path.c_str());
  texts->failed = !ok;
}

}  // namespace

void StatsFile::Count(int layer, int64_t tokens, const Store& store) {
  if (layer != 0 || path_.empty()) return;
  const Time now = std::chrono::steady_clock::now();
  if (now - last_ >= kInterval) Write(now, store);
  tokens_ += tokens;
}

void StatsFile::Finish(const Store& store) {
  if (!path_.empty()) Write(std::chrono::steady_clock::now(), store);
}

void StatsFile::Write(Time now, const Store& store) {
  const double seconds = std::chrono::duration<double>(now - last_).count();
  char line[160];
  std::snprintf(line, sizeof line, "%lld tokens, %.1f a second now; ",
                static_cast<long long>(tokens_), static_cast<double>(tokens_ - written_) / seconds);
  written_ = tokens_;
  last_ = now;
  Put(path_, model_,
      "# " + model_ + ": " + line + store.Statistics() + "\n" + store.Metrics(model_));
}

}  // namespace moert_ggml
