// Tokenizers that write spaces as U+2581 and fall back on bytes (Llama 2, Mixtral, Phi-3.5), and
// the tokens around a prompt: against the reference library's encodings in tests/data/tokenizers.
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "host/tokenizer.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert::host {
namespace {

using Json = nlohmann::json;
using test::TempDir;
using test::WriteFile;

const std::string kDir = SourceDir() + "/tests/data/tokenizers/";

Tokenizer Load(const std::string& name) {
  auto loaded = Tokenizer::Load(kDir + name + ".json");
  REQUIRE_OK(loaded.status());
  return *std::move(loaded);
}

TEST_CASE("texts encode to the reference ids, with and without the tokens around a prompt") {
  const Json cases = Json::parse(test::ReadFile(kDir + "cases.json"));
  REQUIRE(cases.size() == 3);
  for (const auto& [name, list] : cases.items()) {
    const Tokenizer tokenizer = Load(name);
    REQUIRE(list.size() == 16);
    for (const Json& c : list) {
      const std::string text = c["text"];
      INFO(name << ": " << c["text"].dump());
      const auto ids = tokenizer.Encode(text);
      REQUIRE_OK(ids.status());
      CHECK(*ids == c["ids"].get<std::vector<int32_t>>());
      CHECK(*tokenizer.EncodePrompt(text) == c["prompt"].get<std::vector<int32_t>>());
      CHECK(*tokenizer.DecodeBytes(*ids) == c["decoded"].get<std::string>());
    }
  }
}

TEST_CASE("any bytes survive the fallback, and streaming gives the same text") {
  const Tokenizer tokenizer = Load("llama");
  std::mt19937_64 random(3);
  static const char kBytes[] = "  ab\n7\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xFF\xC0\xED\xA0";
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (uint64_t i = random() % 40; i > 0; --i) text += kBytes[random() % (sizeof(kBytes) - 1)];
    const auto ids = tokenizer.Encode(text);
    REQUIRE_OK(ids.status());
    REQUIRE(*tokenizer.DecodeBytes(*ids) == text);
    StreamDecoder stream(&tokenizer);
    std::string streamed;
    for (const int32_t id : *ids) streamed += *stream.Push(id);
    streamed += stream.Finish();
    // A stream continues other text: it keeps the space that encoding put in front.
    REQUIRE(streamed == (text.empty() ? "" : " ") + *tokenizer.Decode(*ids));
  }
}

TEST_CASE("tokenizer_config.json decides whether a prompt begins with bos_token") {
  TempDir dir;
  Json json = Json::parse(test::ReadFile(kDir + "llama.json"));
  const auto first = [&](const std::string& config) {
    WriteFile(dir / "tokenizer.json", json.dump());
    if (!config.empty()) WriteFile(dir / "tokenizer_config.json", config);
    const auto tokenizer = Tokenizer::LoadModel(dir.path());
    REQUIRE_OK(tokenizer.status());
    const std::vector<int32_t> prompt = *tokenizer->EncodePrompt("a");
    const std::vector<int32_t> plain = *tokenizer->Encode("a");
    const std::vector<int32_t> marked = {1, plain[0]};
    REQUIRE((prompt == plain || prompt == marked));
    return prompt[0];
  };
  CHECK(first("") == 1);  // the template
  CHECK(first(R"({"bos_token": "<s>"})") == 1);
  CHECK(first(R"({"add_bos_token": false, "bos_token": "<s>"})") != 1);
  CHECK(first(R"({"add_bos_token": true, "bos_token": "<s>"})") == 1);
  json.erase("post_processor");
  CHECK(first(R"({"add_bos_token": true, "bos_token": {"content": "<s>"}})") == 1);
  CHECK(first(R"({"add_bos_token": false})") != 1);
  const auto error = [&](const std::string& config) {
    WriteFile(dir / "tokenizer_config.json", config);
    const auto tokenizer = Tokenizer::LoadModel(dir.path());
    REQUIRE_FALSE(tokenizer.ok());
    return std::string(tokenizer.status().message());
  };
  CHECK_THAT(error(R"({"add_bos_token": 1})"),
             Catch::Contains("add_bos_token is not true or false"));
  CHECK_THAT(error(R"({"add_bos_token": true, "bos_token": "<bos>"})"),
             Catch::Contains("\"<bos>\" is none of the added tokens"));
  CHECK_THAT(error("{"), Catch::Contains("tokenizer_config.json"));
}

TEST_CASE("bad files: an error that names the field") {
  const auto broken = [](const std::string& name, const char* pointer, Json value) {
    Json copy = Json::parse(test::ReadFile(kDir + name + ".json"));
    copy[Json::json_pointer(pointer)] = std::move(value);
    const auto parsed = Tokenizer::Parse(copy.dump(), "t.json");
    REQUIRE_FALSE(parsed.ok());
    return std::string(parsed.status().message());
  };
  const auto check = [&](const char* name, const char* pointer, Json value, const char* message) {
    INFO(pointer);
    CHECK_THAT(broken(name, pointer, std::move(value)), Catch::Contains(message));
  };
  Json vocab = Json::parse(test::ReadFile(kDir + "llama.json"))["model"]["vocab"];
  vocab.erase("<0x0A>");
  check("llama", "/model/vocab", vocab, "lacks <0x0A>");
  check("llama", "/normalizer", nullptr, "normalizer does not replace spaces");
  check("llama", "/normalizer/normalizers/0/prepend", "x", "normalizer.normalizers[0] is");
  check("llama", "/normalizer/normalizers/1/content", "_", "normalizer.normalizers[1] is");
  check("llama", "/pre_tokenizer", Json{{"type", "Metaspace"}}, "pre_tokenizer.type");
  check("metaspace_first", "/pre_tokenizer/replacement", "_", "is not U+2581");
  check("metaspace_first", "/pre_tokenizer/prepend_scheme", "last",
        "\"last\"; legal are always, first, never");
  check("metaspace_first", "/pre_tokenizer/split", 1, "split is not true or false");
  check("llama", "/added_tokens/0/normalized", true, "added_tokens[0].normalized");
  check("llama", "/post_processor/type", "BertProcessing", "post_processor.type is");
  check("llama", "/post_processor/single", 7, "post_processor.single is not an array");
  check("llama", "/post_processor/single/0/SpecialToken/id", "<x>", "post_processor.single[0]");
  check("llama", "/post_processor/special_tokens/<s>/ids/0", 100000, "has id 100000");
  check("llama", "/post_processor/special_tokens/<s>/ids/0", -1, "is -1, not in 0..");
  check("llama", "/post_processor/single", Json::array(), "has no place for the text");
}

}  // namespace
}  // namespace moert::host
