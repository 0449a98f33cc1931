// The example host's tokenizer: against the reference encoding of the evaluation texts, and against
// hostile files and bytes.
#include "host/tokenizer.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "host/utf8.h"
#include "support/catch.h"
#include "support/paths.h"

namespace moert::host {
namespace {

using Json = nlohmann::json;

const std::string kSource = SourceDir();
const std::string kTokenizerFile = kSource + "/examples/models/tiny-moe/tokenizer.json";

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  INFO(path);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<int32_t> ReadU16(const std::string& path) {
  const std::string bytes = ReadFile(path);
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8);
  }
  return ids;
}

const Tokenizer& TinyTokenizer() {
  static const Tokenizer* tokenizer = [] {
    auto loaded = Tokenizer::Load(kTokenizerFile);
    REQUIRE_OK(loaded.status());
    return new Tokenizer(*std::move(loaded));
  }();
  return *tokenizer;
}

std::string RandomBytes(std::mt19937_64* random, size_t size) {
  // Mostly characters that start, continue or break UTF-8 sequences, white space and letters.
  static const uint8_t kBytes[] = {' ',  ' ',  '\n', '\r', '\t', 'a',  'b',  'Z',  '7',  '\'',
                                   's',  '<',  '|',  '>',  0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0,
                                   0x9F, 0x98, 0x80, 0xED, 0xA0, 0xFF, 0xC0, 0x00, 0xC2, 0x85};
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    const uint64_t r = (*random)();
    out.push_back(static_cast<char>(r % 8 == 0 ? r >> 8 : kBytes[(r >> 8) % std::size(kBytes)]));
  }
  return out;
}

TEST_CASE("evaluation texts encode to the reference ids and decode to the text") {
  for (const char* domain : {"wikitext2", "gsm8k", "humaneval"}) {
    const std::string base = kSource + "/tests/data/eval/" + domain;
    const std::string text = ReadFile(base + ".txt");
    const std::vector<int32_t> reference = ReadU16(base + ".tokens.u16");
    INFO(domain);
    const auto ids = TinyTokenizer().Encode(text);
    REQUIRE_OK(ids.status());
    REQUIRE(ids->size() == reference.size());
    const auto [mine, theirs] = std::mismatch(ids->begin(), ids->end(), reference.begin());
    REQUIRE(mine - ids->begin() == static_cast<int64_t>(reference.size()));
    const auto decoded = TinyTokenizer().DecodeBytes(reference);
    REQUIRE_OK(decoded.status());
    REQUIRE((*decoded == text));

    StreamDecoder stream(&TinyTokenizer());
    std::string streamed;
    for (const int32_t id : reference) {
      const auto piece = stream.Push(id);
      REQUIRE_OK(piece.status());
      REQUIRE(ToValidUtf8(*piece) == *piece);
      streamed += *piece;
    }
    streamed += stream.Finish();
    REQUIRE((streamed == text));
  }
}

TEST_CASE("any bytes survive encoding, and streaming never shows a partial character") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::string bytes = RandomBytes(&random, random() % 60);
    const auto ids = TinyTokenizer().Encode(bytes);
    REQUIRE_OK(ids.status());
    const auto decoded = TinyTokenizer().DecodeBytes(*ids);
    REQUIRE_OK(decoded.status());
    REQUIRE(*decoded == bytes);
    StreamDecoder stream(&TinyTokenizer());
    std::string streamed;
    for (const int32_t id : *ids) {
      const auto piece = stream.Push(id);
      REQUIRE_OK(piece.status());
      REQUIRE(ToValidUtf8(*piece) == *piece);
      streamed += *piece;
    }
    streamed += stream.Finish();
    REQUIRE(streamed == ToValidUtf8(bytes));
    REQUIRE(streamed == *TinyTokenizer().Decode(*ids));
  }
}

TEST_CASE("long pieces without a boundary encode in reasonable time") {
  const std::string text(1 << 20, 'a');  // a quadratic merge loop would take hours
  const auto ids = TinyTokenizer().Encode(text);
  REQUIRE_OK(ids.status());
  REQUIRE((*TinyTokenizer().DecodeBytes(*ids) == text));
}

TEST_CASE("added tokens are found before anything else") {
  const auto ids = TinyTokenizer().Encode("a<|endoftext|><|endoftext|>b<|endoftex");
  REQUIRE_OK(ids.status());
  REQUIRE((*ids)[1] == 0);
  REQUIRE((*ids)[2] == 0);
  REQUIRE(std::count(ids->begin(), ids->end(), 0) == 2);
  REQUIRE(TinyTokenizer().Encode("")->empty());
}

TEST_CASE("ids outside the vocabulary are refused by index and value") {
  const auto decoded = TinyTokenizer().DecodeBytes({5, 4096});
  REQUIRE(decoded.status().code() == absl::StatusCode::kInvalidArgument);
  REQUIRE_THAT(std::string(decoded.status().message()), Catch::Contains("4096 at index 1"));
  REQUIRE_FALSE(TinyTokenizer().DecodeBytes({-1}).ok());
}

TEST_CASE("bad tokenizer files: an error that names file and field") {
  const Json good = Json::parse(ReadFile(kTokenizerFile));
  const auto error = [](const std::string& text) {
    const auto parsed = Tokenizer::Parse(text, "dir/tokenizer.json");
    REQUIRE_FALSE(parsed.ok());
    const std::string message(parsed.status().message());
    REQUIRE_THAT(message, Catch::StartsWith("dir/tokenizer.json"));
    return message;
  };
  REQUIRE_THAT(error("{"), Catch::Contains("JSON"));
  REQUIRE_THAT(error("[]"), Catch::Contains("object"));
  REQUIRE_THAT(error(R"({"model":{},"model":{}})"), Catch::Contains("duplicate key"));
  REQUIRE_THAT(error("{}"), Catch::Contains("model"));
  REQUIRE_THAT(error(R"({"model":)" + std::string(100000, '[')), Catch::Contains("nested deeper"));
  const auto broken = [&](const char* pointer, Json value) {
    Json copy = good;
    copy[Json::json_pointer(pointer)] = std::move(value);
    return error(copy.dump());
  };
  REQUIRE_THAT(broken("/model/type", "Unigram"), Catch::Contains("model.type"));
  REQUIRE_THAT(broken("/model/type", 3), Catch::Contains("model.type"));
  REQUIRE_THAT(broken("/model/byte_fallback", "yes"), Catch::Contains("model.byte_fallback"));
  REQUIRE_THAT(broken("/model/dropout", 0.1), Catch::Contains("model.dropout"));
  REQUIRE_THAT(broken("/model/vocab", Json::array()), Catch::Contains("model.vocab"));
  REQUIRE_THAT(broken("/model/vocab/zzz", -1), Catch::Contains("model.vocab[\"zzz\"]"));
  REQUIRE_THAT(broken("/model/vocab/zzz", 1e300), Catch::Contains("model.vocab[\"zzz\"]"));
  REQUIRE_THAT(broken("/model/vocab/zzz", 18446744073709551615u), Catch::Contains("not in 0.."));
  REQUIRE_THAT(broken("/model/vocab/zzz", 16777215),
               Catch::Contains("has id 16777215, far beyond its"));
  REQUIRE_THAT(broken("/model/vocab/zzz", 7), Catch::Contains("as another token has"));
  REQUIRE_THAT(broken("/model/merges", nullptr), Catch::Contains("model.merges"));
  REQUIRE_THAT(broken("/model/merges/3", "a"), Catch::Contains("model.merges[3]"));
  REQUIRE_THAT(broken("/model/merges/3", Json({"a", 1})), Catch::Contains("model.merges[3]"));
  REQUIRE_THAT(broken("/model/merges/3", Json({"qqq", "q"})), Catch::Contains("model.merges[3]"));
  REQUIRE_THAT(broken("/added_tokens/0/id", "0"), Catch::Contains("added_tokens[0].id"));
  REQUIRE_THAT(broken("/added_tokens/0/id", 9), Catch::Contains("added_tokens[0]"));
  REQUIRE_THAT(broken("/added_tokens/0/content", nullptr), Catch::Contains("content"));
  REQUIRE_THAT(broken("/added_tokens/0/single_word", true), Catch::Contains("single_word"));
  REQUIRE_THAT(broken("/added_tokens", 5), Catch::Contains("added_tokens"));
  REQUIRE_THAT(broken("/normalizer", Json{{"type", "Lowercase"}}), Catch::Contains("normalizer"));
  REQUIRE_THAT(broken("/pre_tokenizer", nullptr), Catch::Contains("ByteLevel"));
  REQUIRE_THAT(broken("/pre_tokenizer/type", "Whitespace"), Catch::Contains("pre_tokenizer.type"));
  REQUIRE_THAT(broken("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(unclosed"),
               Catch::Contains("pre_tokenizer.pretokenizers[0].pattern"));
  REQUIRE_THAT(broken("/pre_tokenizer/pretokenizers/0/behavior", "Removed"),
               Catch::Contains("behavior"));

  REQUIRE_FALSE(Tokenizer::Load(kSource + "/no/such/tokenizer.json").ok());
  REQUIRE_FALSE(Tokenizer::Load(kSource).ok());  // a directory
}

TEST_CASE("merges may be written as one string") {
  Json json = Json::parse(ReadFile(kTokenizerFile));
  for (auto& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const auto tokenizer = Tokenizer::Parse(json.dump(), "old");
  REQUIRE_OK(tokenizer.status());
  const std::string text = "The history of the city, in 1234 words.\n";
  REQUIRE(*tokenizer->Encode(text) == *TinyTokenizer().Encode(text));
}

TEST_CASE("NFC: accepted where it cannot change the text, refused where it might") {
  Json json = Json::parse(ReadFile(kTokenizerFile));
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = Tokenizer::Parse(json.dump(), "nfc");
  REQUIRE_OK(tokenizer.status());
  for (const std::string text :
       {"na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87", "Ti\xE1\xBA\xBFng Vi\xE1\xBB\x87t",
        "\xD8\xA7\xD9\x84", "\xE0\xA4\xB9\xE0\xA4\xBF", "\xE1\xBC\x80\xCF\x81\xCF\x87\xCE\xAE",
        "\xF0\x9F\x98\x80"}) {
    INFO(text);
    REQUIRE_OK(tokenizer->Encode(text).status());
    REQUIRE(*tokenizer->Encode(text) == *TinyTokenizer().Encode(text));
  }
  REQUIRE_FALSE(tokenizer->Encode("\xE2\x84\xAB").ok());  // the Angstrom sign becomes a letter
  const auto combining = tokenizer->Encode("e\xCC\x81");
  REQUIRE(combining.status().code() == absl::StatusCode::kUnimplemented);
  REQUIRE_THAT(std::string(combining.status().message()), Catch::Contains("U+0301 at byte 1"));
}

TEST_CASE("UTF-8: overlong forms, surrogates and large values are invalid") {
  REQUIRE(ToValidUtf8("\xC0\xAF") == "\xEF\xBF\xBD\xEF\xBF\xBD");
  REQUIRE(ToValidUtf8("\xE2\x82") == "\xEF\xBF\xBD");
  REQUIRE(ToValidUtf8("\xE2\x82x") == "\xEF\xBF\xBDx");
  REQUIRE(ToValidUtf8("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  REQUIRE(ToValidUtf8("\xF4\x90\x80\x80").size() == 12);
  for (const char32_t c : {U'a', U'\u00E9', U'\u20AC', U'\U0001F600', U'\U0010FFFF'}) {
    std::string out;
    AppendUtf8(c, &out);
    const Utf8Unit unit = ScanUtf8(out);
    REQUIRE(unit.kind == Utf8Unit::kValid);
    REQUIRE(unit.code_point == c);
    REQUIRE(unit.length == static_cast<int>(out.size()));
  }
}

// Pieces of a text under published pre-tokenizers, joined by |.
std::string Pieces(const std::vector<std::string>& patterns, const std::string& text) {
  PreTokenizer splitter;
  for (const std::string& pattern : patterns) REQUIRE_OK(splitter.AddPattern(pattern));
  std::vector<absl::string_view> pieces;
  REQUIRE_OK(splitter.Split(text, &pieces));
  std::string joined;
  for (const absl::string_view piece : pieces) joined += std::string(piece) + "|";
  return joined;
}

TEST_CASE("the pre-tokenizers of Qwen, Llama 3, DeepSeek V3 and gpt-oss") {
  const std::string qwen =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const std::string llama =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const std::string upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
  const std::string end = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|", begin = "[^\\r\\n\\p{L}\\p{N}]?";
  const std::string gpt_oss = begin + upper + "*" + lower + "+" + end + begin + upper + "+" + lower +
                              "*" + end +
                              "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const std::vector<std::string> deepseek = {
      "\\p{N}{1,3}", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};
  const std::string text = "HelloWorld, it's 1234!\n  x";
  CHECK(Pieces({qwen}, text) == "HelloWorld|,| it|'s| |1|2|3|4|!\n| | x|");
  CHECK(Pieces({llama}, text) == "HelloWorld|,| it|'s| |123|4|!\n| | x|");
  CHECK(Pieces({gpt_oss}, text) == "Hello|World|,| it's| |123|4|!\n| | x|");
  CHECK(Pieces(deepseek, text) == "HelloWorld|,| it|'s| |123|4|!\n| | x|");
  CHECK(Pieces(deepseek, "a\u4E2D\u6587b") == "a|\u4E2D\u6587|b|");
}

}  // namespace
}  // namespace moert::host
