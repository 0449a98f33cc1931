// One hostile file for each published vulnerability of other loaders of model files that could have
// an equivalent here: what went wrong there must be an error here that names the cause. The
// identifiers are those of the advisories and issue threads.
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "host/chat_template.h"
#include "host/tokenizer.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/tools/trace.h"
#include "pack/pack_manifest.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;
using test::ReadFile;

const std::string kSource = SourceDir();
const std::string kCorpus = kSource + "/tests/fuzz/corpus/";

struct Case {
  const char* vulnerability;
  const char* cause;  // there
  std::function<absl::Status()> read;
  const char* message;  // here
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

absl::Status Weights(const std::string& header, size_t data_bytes = 8) {
  fuzz::MemoryEnv env(test::Safetensors(header, std::string(data_bytes, 'x')));
  return Checkpoint::Open("w.safetensors", &env).status();
}

absl::Status Bytes(std::string bytes) {
  fuzz::MemoryEnv env(std::move(bytes));
  return Checkpoint::Open("w.safetensors", &env).status();
}

absl::Status Manifest(const char* pointer, json value) {
  json manifest = json::parse(ReadFile(kCorpus + "manifest/two_versions.json"));
  manifest[json::json_pointer(pointer)] = std::move(value);
  fuzz::MemoryEnv env(manifest.dump());
  return ReadManifest("pack", &env).status();
}

absl::Status Config(const char* field, json value) {
  json config = json::parse(ReadFile(kCorpus + "hf_config/qwen3_moe.json"));
  config[field] = std::move(value);
  return ParseHfConfig(config.dump(), "config.json").status();
}

absl::Status Tokens(const char* pointer, json value) {
  json tokenizer = json::parse(ReadFile(kCorpus + "tokenizer/fallback.json"));
  tokenizer[json::json_pointer(pointer)] = std::move(value);
  return host::Tokenizer::Parse(tokenizer.dump(), "tokenizer.json").status();
}

absl::Status Chat(const char* chat_template) {
  const test::TempDir dir;
  test::WriteFile(dir / "tokenizer_config.json", json{{"chat_template", chat_template}}.dump());
  return host::ChatTemplate::LoadModel(dir.path()).status();
}

absl::Status Trace(size_t at, const std::string& bytes) {
  std::string trace = ReadFile(kCorpus + "trace/two_windows.trace");
  trace.replace(at, bytes.size(), bytes);
  const auto reader =
      OpenTrace(fuzz::ScratchFile(reinterpret_cast<const uint8_t*>(trace.data()), trace.size()));
  if (!reader.ok()) return reader.status();
  for (;;) {
    const auto call = (*reader)->Next();
    if (!call.ok()) return call.status();
    if (*call == nullptr) return absl::OkStatus();
  }
}

size_t FirstCall() {
  const std::string trace = ReadFile(kCorpus + "trace/two_windows.trace");
  uint32_t header = 0;
  std::memcpy(&header, trace.data() + 12, 4);
  return 16 + header;
}

// The seeds that the cases change are legal, or the cases would prove nothing.
TEST_CASE("the files that are made hostile are legal before") {
  REQUIRE_OK(Weights(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"));
  REQUIRE_OK(Config("vocab_size", 32));
  REQUIRE_OK(Tokens("/model/vocab/zz", 264));
  REQUIRE_OK(Trace(FirstCall(), ""));
  REQUIRE_OK(Chat("{{ '<|im_start|>user' }}{{ '<|im_end|>' }}"));
  fuzz::MemoryEnv env(ReadFile(kCorpus + "manifest/two_versions.json"));
  REQUIRE_OK(ReadManifest("pack", &env).status());
}

TEST_CASE("what was a vulnerability elsewhere is an error that names the cause") {
  const std::string all_ones(8, '\xff');
  std::string many = "{";
  for (int i = 0; i < 700'000; ++i) {
    many += '"' + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  }
  many.back() = '}';
  const std::string deep = R"({"__metadata__":)" + std::string(1'000'000, '[');
  const Case cases[] = {
      {"CVE-2024-21802 (GGUF, Talos)", "a count from the file is multiplied into an allocation",
       [&] { return Bytes(all_ones + "{}"); }, "header of 18446744073709551615 bytes"},
      {"CVE-2024-21802 (GGUF, Talos)", "the same with a count of elements: tokens of a call",
       [] { return Trace(FirstCall() + 12, "\xff\xff\xff\x7f"); }, "tokens: must be in"},
      {"CVE-2024-21802 (GGUF, Talos)", "the same with the size of an entry",
       [] { return Trace(FirstCall(), std::string(7, '\xff') + "\x7f"); }, "its fields take"},
      {"CVE-2025-53630 (GGUF)", "the sum of tensor sizes wraps",
       [] {
         return Weights(
             R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]},)"
             R"("b":{"dtype":"U8","shape":[9],"data_offsets":[9223372036854775807,9223372036854775816]}})");
       },
       "the file holds only 8 bytes"},
      {"CVE-2026-27940 (GGUF)", "a buffer smaller than what is read into it",
       [] { return Weights(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,8]}})"); },
       "takes 1 bytes, but data_offsets span 8"},
      {"CVE-2026-33298 (GGUF)", "the number of elements is representable, their bytes are not",
       [] {
         return Weights(
             R"({"t":{"dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,0]}})");
       },
       "overflows"},
      {"ggml-org/llama.cpp#24759", "rounding up to the alignment wraps to 0 before it is checked",
       [] { return Manifest("/records/0/2", 9223372036854775807); }, "record"},
      {"ggml-org/llama.cpp#24759", "the same with the end of the range",
       [] { return Manifest("/records/0/1", 9223372036854771712); }, "record"},
      {"CVE-2026-7482 (Ollama)", "offset plus size is not compared with the length of the file",
       [] { return Weights(R"({"t":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})"); },
       "ends at 9, but the file holds only 8 bytes"},
      {"CVE-2026-7482 (Ollama)", "the same in a pack",
       [] { return Manifest("/files/0/bytes", 4096); }, "record"},
      {"openvinotoolkit/openvino.genai#4170",
       "the number of dimensions is bounded by an assert only",
       [] {
         json shape = json::array();
         for (int i = 0; i < 1000; ++i) shape.push_back(1);
         return Weights(
             R"({"t":{"dtype":"U8","shape":)" + shape.dump() + R"(,"data_offsets":[0,1]}})", 1);
       },
       "at most 8 sizes"},
      {"CVE-2024-41130 (GGUF)", "a name that was not read is a null pointer",
       [] { return Weights(R"({"":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"); },
       "the name has 0 bytes"},
      {"CVE-2024-32878 (GGUF)", "what was not initialized is freed when a later entry is bad",
       [] {
         return Weights(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":"x"}})");
       },
       "tensor \"b\": data_offsets must be two integers"},
      {"CVE-2025-52566 (llama.cpp)", "token lengths are compared signed against unsigned",
       [] { return Tokens("/model/vocab/zz", -1); }, "is -1, not in 0.."},
      {"CVE-2025-52566 (llama.cpp)", "the same beyond the signed range",
       [] { return Tokens("/model/vocab/zz", 18446744073709551615u); }, "not in 0.."},
      {"CVE-2025-52566 (llama.cpp)", "the same in the tokens around a prompt",
       [] { return Tokens("/post_processor/special_tokens/<s>/ids/0", 2147483648); }, "not in 0.."},
      {"ml-explore/mlx#3363", "shape and offsets are not compared",
       [] { return Weights(R"({"t":{"dtype":"F32","shape":[1000],"data_offsets":[0,8]}})"); },
       "takes 4000 bytes, but data_offsets span 8"},
      {"ml-explore/mlx#3409", "offsets are not compared with the size of the file",
       [] {
         return Weights(
             R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[4294967296,4294967304]}})");
       },
       "the file holds only 8 bytes"},
      {"google-ai-edge/LiteRT#9255", "the product of the sizes wraps to exactly 0, taken for empty",
       [] {
         return Weights(
             R"({"t":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0);
       },
       "overflows"},
      {"ztxz16/fastllm#712", "the buffer follows the shape, the read the offsets",
       [] { return Weights(R"({"t":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}})"); },
       "takes 4 bytes, but data_offsets span 8"},
      {"imp#1603", "an unknown type skips the checks",
       [] { return Weights(R"({"t":{"dtype":"F4","shape":[8],"data_offsets":[0,9]}})"); },
       "the file holds only 8 bytes"},
      {"audio.cpp#138", "a negative number is cast to size_t",
       [] { return Weights(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}})"); },
       "non-negative integers"},
      {"audio.cpp#138", "the same in a configuration", [] { return Config("num_experts", -2); },
       "num_experts is -2, legal is an integer from 1"},
      {"CVE-2024-34359 (llama-cpp-python)", "a chat template is run as a program",
       [] { return Chat("{{ ''.__class__.__mro__[1].__subclasses__() }}"); },
       "none of those that are known", absl::StatusCode::kUnimplemented},
      {"resource exhaustion (safetensors)", "a header of very many entries",
       [&] { return Weights(many, 0); }, "more than 2000000 values"},
      {"resource exhaustion (JSON)", "a parser that recurses runs out of stack",
       [&] { return Weights(deep, 0); }, "nested deeper"},
      {"resource exhaustion (JSON)", "a number of layers that is believed",
       [] { return Config("num_hidden_layers", 1000000000); },
       "legal is an integer from 1 to 4096"},
      {"resource exhaustion (tokenizer)", "an id far beyond the vocabulary sizes a table",
       [] { return Tokens("/model/vocab/zz", 16000000); }, "far beyond"},
  };
  for (const Case& c : cases) {
    INFO(c.vulnerability << ": " << c.cause);
    const absl::Status status = c.read();
    REQUIRE_FALSE(status.ok());
    CHECK(status.code() == c.code);
    CHECK_THAT(std::string(status.message()), Catch::Contains(c.message));
  }
}

}  // namespace
}  // namespace moert
