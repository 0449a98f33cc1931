#include "moert/offline/gguf.h"

#include <cstring>
#include <utility>

#include "support/catch.h"
#include "support/gguf_file.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::GgufFile;
using test::TinyGguf;
using test::WriteFile;

TEST_CASE("a GGUF file says what its experts take") {
  const test::TempDir dir;
  WriteFile(dir / "m.gguf", TinyGguf().Bytes());
  const auto info = ReadGguf(dir / "m.gguf");
  REQUIRE_OK(info.status());
  CHECK(info->architecture == "qwen3moe");
  CHECK(info->name == "tiny");
  CHECK(info->layers == 2);
  CHECK(info->experts == 8);
  CHECK(info->experts_used == 2);
  CHECK(info->hidden == 64);
  CHECK(info->expert_width == 32);
  CHECK(info->kv_heads == 4);  // the most of a list, one a layer
  int64_t experts = 0;
  for (const GgufTensor& t : info->tensors) experts += GgufInfo::IsExpert(t) ? t.bytes : 0;
  CHECK(experts == 2 * 3 * 8 * 64 * 32 / 32 * 18);  // Q4_0: 18 bytes for 32 values
}

TEST_CASE("a split GGUF is one model, and a missing part is named") {
  const test::TempDir dir;
  const GgufFile whole = TinyGguf();
  GgufFile first = whole, second = whole;
  first.tensors.resize(3);
  second.tensors.erase(second.tensors.begin(), second.tensors.begin() + 3);
  WriteFile(dir / "m-00001-of-00002.gguf", first.Bytes());
  CHECK_THAT(std::string(ReadGguf(dir / "m-00001-of-00002.gguf").status().message()),
             Catch::Contains("m-00002-of-00002.gguf"));
  WriteFile(dir / "m-00002-of-00002.gguf", second.Bytes());
  const auto info = ReadGguf(dir / "m-00002-of-00002.gguf");
  REQUIRE_OK(info.status());
  CHECK(info->files == 2);
  CHECK(info->tensors.size() == whole.tensors.size());
}

TEST_CASE("hostile GGUF files are errors that say what is wrong") {
  const test::TempDir dir;
  const auto says = [&](std::string bytes) {
    WriteFile(dir / "bad.gguf", std::move(bytes));
    const auto info = ReadGguf(dir / "bad.gguf");
    return info.ok() ? std::string("fine") : std::string(info.status().message());
  };
  const std::string good = TinyGguf().Bytes();
  CHECK(says(good) == "fine");
  CHECK_THAT(says("GGML" + good.substr(4)), Catch::Contains("does not begin with GGUF"));
  std::string version = good;
  version[4] = 1;
  CHECK_THAT(says(version), Catch::Contains("GGUF version 1; legal are 2 and 3"));
  std::string many = good;
  std::memset(many.data() + 8, 0xff, 8);
  CHECK_THAT(says(many), Catch::Contains("legal are at most"));
  for (const size_t length : {size_t{0}, size_t{3}, size_t{20}, size_t{100}, good.size() / 2}) {
    INFO(length);
    CHECK(says(good.substr(0, length)) != "fine");
  }
  CHECK_THAT(says(good.substr(0, good.size() - 1)), Catch::Contains("cut short"));
  GgufFile file = TinyGguf();
  file.tensors[0].type = 99;
  CHECK_THAT(says(file.Bytes()), Catch::Contains("type 99, which is not known"));
  file = TinyGguf();
  file.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  CHECK_THAT(says(file.Bytes()), Catch::Contains("overflows"));
  file = TinyGguf();
  file.tensors[2].shape[0] = 63;
  CHECK_THAT(says(file.Bytes()), Catch::Contains("multiples of 32"));
  file = TinyGguf();
  file.tensors[0].offset = uint64_t{1} << 62;
  CHECK_THAT(says(file.Bytes()), Catch::Contains("beyond the file"));
  file.tensors[0].offset = UINT64_MAX;
  CHECK_THAT(says(file.Bytes()),
             Catch::Contains("bytes from 18446744073709551615 on lie beyond the file"));
  file = TinyGguf();
  file.strings = uint64_t{1} << 60;  // a list of as many
  CHECK_THAT(says(file.Bytes()), Catch::Contains("ends within its header"));
}

}  // namespace
}  // namespace moert
