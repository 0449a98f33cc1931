#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/bf16.h"
#include "moert/offline/checkpoint.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::ReadFile;
using test::Safetensors;
using test::TempDir;
using test::WriteFile;

const std::string kTiny = SourceDir() + "/examples/models/tiny-moe";

std::string Bytes(std::initializer_list<uint16_t> values) {
  std::string out;
  for (uint16_t v : values) {
    out += static_cast<char>(v & 0xff);
    out += static_cast<char>(v >> 8);
  }
  return out;
}

TEST_CASE("the bundled model opens and reads") {
  const auto c = Checkpoint::Open(kTiny);
  REQUIRE_OK(c.status());
  CHECK((*c)->tensors().size() == 882);
  const TensorInfo* t = (*c)->Find("model.layers.3.mlp.experts.17.down_proj.weight");
  REQUIRE(t != nullptr);
  CHECK(t->dtype == DType::kBF16);
  CHECK(t->shape == std::vector<int64_t>{128, 64});
  CHECK(t->bytes == 16384);
  CHECK((*c)->Find("lm_head.weight") == nullptr);

  const auto norm = (*c)->ReadF32("model.norm.weight", {128});
  REQUIRE_OK(norm.status());
  CHECK(norm->size() == 128);
  float sum = 0;
  for (float v : *norm) sum += v;
  CHECK(sum > 1.0f);

  const auto wrong = (*c)->ReadF32("model.norm.weight", {64, 2});
  REQUIRE_FALSE(wrong.ok());
  CHECK(std::string(wrong.status().message()) ==
        kTiny +
            "/model.safetensors: tensor \"model.norm.weight\": its shape is [128], expected "
            "[64, 2]");
  const auto missing = (*c)->ReadF32("lm_head.weight", {1});
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
  CHECK(std::string(missing.status().message()) ==
        kTiny + ": tensor \"lm_head.weight\" is missing");
}

TEST_CASE("floating-point types are widened and rounded") {
  TempDir dir;
  const std::string header = R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                             R"("h":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},)"
                             R"("f":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                             R"("e":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[12,14]},)"
                             R"("i":{"dtype":"I32","shape":[1],"data_offsets":[14,18]},)"
                             R"("s":{"dtype":"U8","shape":[],"data_offsets":[18,19]},)"
                             R"("z":{"dtype":"F32","shape":[0,3],"data_offsets":[19,19]},)"
                             R"("__metadata__":{"format":"pt"}}   )";
  WriteFile(dir / "x.safetensors",
            Safetensors(header, Bytes({0x3f80, 0xc000, 0x3c00, 0x3800, 0x8001, 0x3f80}) +
                                    "\x38\x40" + Bytes({7, 0}) + "\x05"));
  const auto c = Checkpoint::Open(dir / "x.safetensors");
  REQUIRE_OK(c.status());
  CHECK(*(*c)->ReadF32("b", {2}) == std::vector<float>{1.0f, -2.0f});
  CHECK(*(*c)->ReadF32("h", {2}) == std::vector<float>{1.0f, 0.5f});
  CHECK(*(*c)->ReadF32("e", {2}) == std::vector<float>{1.0f, 2.0f});
  CHECK((*c)->ReadF32("z", {0, 3})->empty());
  CHECK((*c)->ReadF32("i", {1}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK((*c)->Find("s")->shape.empty());
  uint16_t bf16[1];
  REQUIRE_OK((*c)->ReadAsBf16(**(*c)->Get("f"), 0, absl::MakeSpan(bf16)));
  CHECK(bf16[0] == 0x3f81);  // 0x3f808001 is just above the tie
  REQUIRE_OK((*c)->ReadAsBf16(**(*c)->Get("b"), 1, absl::MakeSpan(bf16)));
  CHECK(bf16[0] == 0xc000);
  std::byte raw[2];
  CHECK((*c)->ReadBytes(**(*c)->Get("s"), 0, absl::MakeSpan(raw)).code() ==
        absl::StatusCode::kOutOfRange);
}

TEST_CASE("a tensor of a type that is not known does no harm, and is refused where it is read") {
  TempDir dir;
  WriteFile(dir / "x.safetensors",
            Safetensors(R"({"a":{"dtype":"F4","shape":[7],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},)"
                        R"("c":{"dtype":"C128","shape":[1],"data_offsets":[6,22]}})",
                        std::string(4, 'x') + Bytes({0x4000}) + std::string(16, 'x')));
  const auto c = Checkpoint::Open(dir / "x.safetensors");
  REQUIRE_OK(c.status());
  CHECK((*c)->ReadF32("b", {1})->at(0) == 2.0f);
  CHECK((*c)->Find("a")->unknown_type == "\"F4\"");
  CHECK((*c)->Find("c")->bytes == 16);
  const auto read = (*c)->ReadF32("a", {7});
  CHECK(absl::IsUnimplemented(read.status()));
  CHECK_THAT(std::string(read.status().message()),
             Catch::Contains("tensor \"a\": its type \"F4\" is not read"));
  float value;
  CHECK_FALSE((*c)->ReadAsF32(*(*c)->Find("a"), 0, {&value, 1}).ok());
  CHECK_FALSE((*c)->CheckWeightType(*(*c)->Find("a")).ok());
}

std::string OneTensor(const std::string& name, uint16_t value) {
  return Safetensors(R"({")" + name + R"(":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})",
                     Bytes({value}));
}

TEST_CASE("numbered shards are found without an index") {
  TempDir dir;
  const std::string second = dir / "model-00002-of-00002.safetensors";
  WriteFile(dir / "model-00001-of-00002.safetensors", OneTensor("x", 0x3f80));
  const auto open = [&] { return Checkpoint::Open(dir.path()); };
  const auto error = [&] { return std::string(open().status().message()); };
  CHECK_THAT(error(), Catch::Contains("1 of 2 shards are there, and there is no index"));
  WriteFile(second, OneTensor("x", 0x4000));
  CHECK_THAT(error(), Catch::Contains("tensor \"x\" is in two shards"));
  WriteFile(second, OneTensor("y", 0x4000));
  WriteFile(dir / "model-of-two.safetensors", "not one of them");
  WriteFile(dir / "consolidated.safetensors", "nor this");
  const auto c = open();
  REQUIRE_OK(c.status());
  CHECK((*c)->num_files() == 2);
  CHECK((*c)->ReadF32("x", {1})->at(0) == 1.0f);
  CHECK((*c)->ReadF32("y", {1})->at(0) == 2.0f);
  WriteFile(dir / "model-00003-of-00003.safetensors", OneTensor("z", 0x4000));
  CHECK_THAT(error(), Catch::Contains("model-00003-of-00003.safetensors is not shard 3 of 2"));
}

TEST_CASE("shards are found through their index") {
  TempDir dir;
  WriteFile(dir / "a.safetensors",
            Safetensors(R"({"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},)"
                        R"("unlisted":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})",
                        Bytes({0x3f80, 0x3f80})));
  WriteFile(
      dir / "b.safetensors",
      Safetensors(R"({"y":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", Bytes({0x4000})));
  const std::string index = dir / "model.safetensors.index.json";
  WriteFile(index, R"({"metadata":{},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  const auto c = Checkpoint::Open(dir.path());
  REQUIRE_OK(c.status());
  CHECK((*c)->num_files() == 2);
  CHECK((*c)->ReadF32("y", {1})->at(0) == 2.0f);
  CHECK((*c)->ReadF32("x", {1})->at(0) == 1.0f);
  CHECK((*c)->Find("unlisted") == nullptr);

  struct Case {
    const char* index;
    const char* message;
  };
  const Case cases[] = {
      {R"({"weight_map":{"x":"gone.safetensors"}})", "shard gone.safetensors of tensor \"x\""},
      {R"({"weight_map":{"q":"a.safetensors"}})", "tensor \"q\" is not in a.safetensors"},
      {R"({"weight_map":{"x":"../a.safetensors"}})", "plain file name"},
      {R"({"weight_map":{"x":"/etc/passwd"}})", "plain file name"},
      {R"({"weight_map":{"x":7}})", "plain file name"},
      {R"({"weight_map":[]})", "weight_map is not an object"},
      {R"({})", "weight_map is not an object"},
      {R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})", "duplicate key \"x\""},
      {"[1]", "top level is not an object"},
      {"", "invalid JSON"},
  };
  for (const Case& k : cases) {
    WriteFile(index, k.index);
    const auto bad = Checkpoint::Open(dir.path());
    INFO(k.index);
    REQUIRE_FALSE(bad.ok());
    const std::string message(bad.status().message());
    CHECK_THAT(message, Catch::Contains(k.message));
    CHECK_THAT(message, Catch::StartsWith(index));
  }
}

TEST_CASE("malformed files are refused, and the message names file and cause") {
  struct Case {
    const char* what;
    std::string bytes;
    const char* message;
  };
  const auto one = [](const std::string& entry, size_t data) {
    return Safetensors(R"({"t":)" + entry + "}", std::string(data, 'x'));
  };
  const std::string deep = R"({"__metadata__":)" + std::string(100000, '[');
  const Case cases[] = {
      {"empty", "", "too short"},
      {"seven bytes", "1234567", "too short"},
      {"header longer than the file", std::string("\x40\0\0\0\0\0\0\0{}", 10),
       "header of 64 bytes"},
      {"header length wraps", std::string(8, '\xff') + "{}",
       "header of 18446744073709551615 bytes"},
      {"no header", Safetensors("", ""), "does not start with {"},
      {"leading space", Safetensors(" {}", ""), "does not start with {"},
      {"not JSON", Safetensors("{nonsense", ""), "invalid JSON"},
      {"trailing garbage", Safetensors("{} x", ""), "invalid JSON"},
      {"bad UTF-8", Safetensors("{\"\xc3\x28\":1}", ""), "invalid JSON"},
      {"deep nesting", Safetensors(deep, ""), "nested deeper"},
      {"duplicate tensor",
       Safetensors(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                   "x"),
       "duplicate key \"t\""},
      {"entry is not an object", one("5", 0), "tensor \"t\": its entry is not an object"},
      {"missing field", one(R"({"dtype":"U8","shape":[1]})", 1), "must have dtype, shape"},
      {"unknown dtype of too many bytes",
       one(R"({"dtype":"Q4","shape":[1],"data_offsets":[0,17]})", 17), "data_offsets span 17"},
      {"unknown dtype, truncated", one(R"({"dtype":"Q4","shape":[1],"data_offsets":[0,2]})", 1),
       "the file holds only 1 bytes"},
      {"dtype is a number", one(R"({"dtype":1,"shape":[1],"data_offsets":[0,1]})", 1),
       "its dtype is not a string"},
      {"negative size", one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1),
       "not a non-negative integer"},
      {"fractional size", one(R"({"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})", 1),
       "not a non-negative integer"},
      {"size beyond int64",
       one(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]})", 1),
       "not a non-negative integer"},
      {"rank", one(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]})", 1),
       "at most 8 sizes"},
      {"product wraps to 0",
       one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
       "overflows"},
      {"bytes wrap",
       one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", 0),
       "overflows"},
      {"shape and offsets differ", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
       "takes 8 bytes, but data_offsets span 4"},
      {"offsets reversed", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 1),
       "ascending order"},
      {"one offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1]})", 1), "two integers"},
      {"truncated", one(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", 8),
       "tensor \"t\": ends at 9, but the file holds only 8 bytes of data (truncated?)"},
      {"gap at the start", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", 2), "(gap)"},
      {"gap",
       Safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                   "xxx"),
       "tensor \"b\": starts at 2, but the one before it ends at 1 (gap)"},
      {"overlap",
       Safetensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                   "xxx"),
       "tensor \"b\": starts at 1, but the one before it ends at 2 (overlap)"},
      {"data after the last tensor", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 2),
       "the last tensor ends at 1, but the file holds 2 bytes"},
      {"metadata is not text", Safetensors(R"({"__metadata__":{"a":1}})", ""), "is not a string"},
      {"name too long",
       Safetensors(
           "{\"" + std::string(2000, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
           "x"),
       "the name has 2000 bytes"},
  };
  TempDir dir;
  const std::string path = dir / "bad.safetensors";
  for (const Case& c : cases) {
    INFO(c.what);
    WriteFile(path, c.bytes);
    const auto bad = Checkpoint::Open(path);
    REQUIRE_FALSE(bad.ok());
    const std::string message(bad.status().message());
    CHECK_THAT(message, Catch::StartsWith(path));
    CHECK_THAT(message, Catch::Contains(c.message));
  }
}

TEST_CASE("every truncation of a file is an error") {
  TempDir dir;
  const std::string whole =
      Safetensors(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "xyz");
  for (size_t n = 0; n < whole.size(); ++n) {
    WriteFile(dir / "t.safetensors", whole.substr(0, n));
    INFO(n);
    CHECK_FALSE(Checkpoint::Open(dir / "t.safetensors").ok());
  }
  WriteFile(dir / "t.safetensors", whole);
  CHECK(Checkpoint::Open(dir / "t.safetensors").ok());
}

TEST_CASE("files of other kinds are known by how they begin") {
  TempDir dir;
  const std::string path = dir / "t.safetensors";
  const struct {
    std::string bytes;
    const char* says;
    absl::StatusCode code = absl::StatusCode::kUnimplemented;
  } cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull",
       absl::StatusCode::kInvalidArgument},
      {std::string("GGUF\3\0\0\0{\0\0\0\0\0\0\0", 16), "a GGUF file"},
      {std::string("\x80\2\x8a\nl\xfc\x9c\x46\xf9 j", 11), "a PyTorch file (pickle)"},
      {std::string("PK\3\4\0\0\x8\x8\0\0", 10), "a PyTorch file (pickle)"},
  };
  for (const auto& c : cases) {
    WriteFile(path, c.bytes);
    const auto opened = Checkpoint::Open(path);
    CHECK(opened.status().code() == c.code);
    CHECK_THAT(std::string(opened.status().message()), Catch::StartsWith(path));
    CHECK_THAT(std::string(opened.status().message()), Catch::Contains(c.says));
  }
}

TEST_CASE("a folder with a GGUF file alone is said to be one, with other ways") {
  TempDir dir;
  WriteFile(dir / "model.gguf", "GGUF");
  const auto opened = Checkpoint::Open(dir.path());
  REQUIRE_FALSE(opened.ok());
  CHECK_THAT(std::string(opened.status().message()),
             Catch::Contains("model.gguf is a GGUF file") && Catch::Contains("libmoert's plug-in"));
}

TEST_CASE("a header may have any length, also one that begins like a file of another kind") {
  TempDir dir;
  const std::string entry = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  for (const size_t length : {size_t{0x80}, size_t{0x280}, size_t{0x4b50}}) {
    const std::string header = entry + std::string(length - entry.size(), ' ');
    WriteFile(dir / "t.safetensors", Safetensors(header, "xyz"));
    INFO(length);
    REQUIRE_OK(Checkpoint::Open(dir / "t.safetensors").status());
  }
}

TEST_CASE("paths that are no checkpoint") {
  TempDir dir;
  CHECK(Checkpoint::Open(dir.path()).status().code() == absl::StatusCode::kNotFound);
  CHECK(Checkpoint::Open(dir / "nothing").status().code() == absl::StatusCode::kNotFound);
  CHECK(Checkpoint::Open("/dev/zero").status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a file that shrinks while it is open gives an error, not a signal") {
  TempDir dir;
  WriteFile(dir / "t.safetensors",
            Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678"));
  const auto c = Checkpoint::Open(dir / "t.safetensors");
  REQUIRE_OK(c.status());
  std::filesystem::resize_file(dir / "t.safetensors", 20);
  const auto values = (*c)->ReadF32("a", {2});
  REQUIRE_FALSE(values.ok());
  CHECK_THAT(std::string(values.status().message()), Catch::Contains("truncated while in use"));
}

}  // namespace
}  // namespace moert
