// The bundled model with the plain oracle as its MoE, and its reference numbers.
#ifndef MOERT_TESTS_SUPPORT_TINY_MODEL_H_
#define MOERT_TESTS_SUPPORT_TINY_MODEL_H_

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "host/model.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/plain_moe.h"

namespace moert {

inline std::string TinyModelDir() { return SourceDir() + "/examples/models/tiny-moe"; }
inline std::string EvalDir() { return SourceDir() + "/tests/data/eval"; }

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  INFO(path);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<int32_t> ReadEvalTokens(const std::string& domain) {
  const std::string bytes = ReadWholeFile(EvalDir() + "/" + domain + ".tokens.u16");
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8);
  }
  return ids;
}

inline nlohmann::json ReadReference() {
  return nlohmann::json::parse(ReadWholeFile(EvalDir() + "/reference.json"));
}

struct TinyModel {
  explicit TinyModel(int threads) {
    auto loaded = LoadHfConfig(TinyModelDir());
    REQUIRE_OK(loaded.status());
    config = *std::move(loaded);
    auto opened = Checkpoint::Open(TinyModelDir());
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
    auto created = CreateThreadPool({.threads = threads});
    REQUIRE_OK(created.status());
    pool = *std::move(created);
    REQUIRE_OK(moe.Load(*checkpoint, config));
    auto decoder_or = host::Decoder::Load(*checkpoint, config, pool.get(), &moe);
    REQUIRE_OK(decoder_or.status());
    decoder = *std::move(decoder_or);
  }

  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<ThreadPool> pool;
  PlainMoe moe;
  std::unique_ptr<host::Decoder> decoder;
};

}  // namespace moert

#endif  // MOERT_TESTS_SUPPORT_TINY_MODEL_H_
