// Packs whose writing is interrupted, and the check of whole packs.
#include <map>
#include <string>

#include "base/thread_pool.h"
#include "moert/offline/pack.h"
#include "pack/expert_pack.h"
#include "pack/pack_writer.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::TempDir;

constexpr int kLayers = 4, kExperts = 3, kVersions = 2;

PackDescription Description() {
  PackDescription d;
  d.model.architecture = "test";
  for (int i = 0; i < kLayers; ++i) {
    MoeLayerSpec l;
    l.model_layer = i;
    l.num_experts = kExperts;
    l.hidden = 72;
    l.intermediate = 24;
    l.routing.top_k = 2;
    l.shared_intermediate = i % 2 == 0 ? 40 : 0;
    l.shared_gate = i % 2 == 0;
    d.model.layers.push_back(l);
  }
  d.versions = {PackVersion::Uniform(Scheme{}), PackVersion::Uniform(*Scheme::Parse("w4a16_g128"))};
  d.quantizer_json = R"({"method":"rtn"})";
  d.max_file_bytes = 50 * 1024;  // files end inside layers and between them
  return d;
}

std::vector<std::byte> Bytes(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 13 + static_cast<size_t>(seed) * 31) & 0xff);
  }
  return bytes;
}

absl::Status WriteRecord(PackWriter* w, int l, int e, int v) {
  const size_t bytes = static_cast<size_t>(w->Layout(l, e, v)->bytes);
  return w->WriteRecord(l, e, v, Bytes(bytes, l * 100 + e * 10 + v));
}

absl::Status WriteConstants(PackWriter* w, int l) {
  const MoeLayerSpec spec = Description().model.layers[static_cast<size_t>(l)];
  LayerConstants c;
  c.gate.assign(static_cast<size_t>(spec.num_experts * spec.hidden), 0.5f + static_cast<float>(l));
  if (spec.shared_gate) c.shared_gate.assign(static_cast<size_t>(spec.hidden), 2.0f);
  if (spec.shared_intermediate > 0) {
    c.shared_layout =
        *MakeRecordLayout(spec.hidden, spec.shared_intermediate, ExpertFormat::Uniform(Scheme{}));
    c.shared_expert = Bytes(static_cast<size_t>(c.shared_layout.bytes), l);
  }
  return w->WriteConstants(l, c);
}

// Writes from where `w` is; stops, with Aborted, after so many records.
absl::Status WriteRest(PackWriter* w, int records) {
  for (int l = w->layers_done(); l < kLayers; ++l) {
    for (int v = 0; v < kVersions; ++v) {
      for (int e = 0; e < kExperts; ++e) {
        if (records-- == 0) return absl::AbortedError("enough");
        if (absl::Status s = WriteRecord(w, l, e, v); !s.ok()) return s;
      }
    }
    if (absl::Status s = WriteConstants(w, l); !s.ok()) return s;
    if (records == 0) return absl::AbortedError("enough");
    if (absl::Status s = w->CommitLayer(l); !s.ok()) return s;
  }
  return w->Finish();
}

std::map<std::string, std::string> Files(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(dir)) {
    files[e.path().filename().string()] = test::ReadFile(e.path().string());
  }
  return files;
}

absl::StatusOr<std::unique_ptr<PackWriter>> Open(const TempDir& dir) {
  return PackWriter::CreateResumable(dir / "pack", Description());
}

void WriteWhole(const TempDir& dir) {
  const auto w = Open(dir);
  REQUIRE_OK(w.status());
  REQUIRE_OK(WriteRest(w->get(), -1));
}

PackVerification Verify(const std::string& dir) {
  const auto pool = CreateThreadPool({.threads = 2});
  const auto result = VerifyPack(dir, Env::Default(), pool->get(), {});
  REQUIRE_OK(result.status());
  return *result;
}

TEST_CASE("interrupted after every record, a pack comes out the same") {
  TempDir whole;
  WriteWhole(whole);
  const auto expected = Files(whole / "pack");
  REQUIRE(expected.size() >= 5);  // several record files
  for (int first = 0; first <= kLayers * kExperts * kVersions; ++first) {
    TempDir dir;
    int interruptions = 0;
    absl::Status status = absl::AbortedError("");
    for (int records = first; absl::IsAborted(status); records += 2) {
      const auto w = Open(dir);
      REQUIRE_OK(w.status());
      REQUIRE((*w)->layers_done() <= kLayers);
      status = WriteRest(w->get(), records);
      interruptions += absl::IsAborted(status) ? 1 : 0;
      if (absl::IsAborted(status)) REQUIRE_FALSE(std::filesystem::exists(dir / "pack"));
    }
    INFO(first << " " << interruptions << " " << status.ToString());
    REQUIRE(status.ok());
    REQUIRE(Files(dir / "pack") == expected);
    REQUIRE_FALSE(std::filesystem::exists(dir / "pack.partial"));
  }
}

TEST_CASE("what completed layers hold is kept, and can be read back") {
  TempDir dir;
  {
    const auto w = Open(dir);
    REQUIRE(absl::IsAborted(WriteRest(w->get(), 2 * kExperts * kVersions + 1)));
  }
  const auto w = Open(dir);
  REQUIRE_OK(w.status());
  REQUIRE((*w)->layers_done() == 2);
  std::vector<std::byte> record;
  REQUIRE_OK((*w)->ReadRecord(1, 2, 1, &record));
  CHECK(record == Bytes(record.size(), 121));
  CHECK(absl::IsFailedPrecondition((*w)->ReadRecord(2, 0, 0, &record)));
  // A record that was damaged meanwhile is not used.
  const auto first = std::filesystem::directory_iterator(dir / "pack.partial/pack");
  for (const auto& e : first) {
    const std::string path = e.path().string();
    if (path.find("experts-00000") == std::string::npos) continue;
    std::string bytes = test::ReadFile(path);
    bytes[5000] ^= 1;
    test::WriteFile(path, bytes);
  }
  CHECK((*w)->ReadRecord(0, 0, 0, &record).code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("another job, another process, or an existing pack is refused") {
  TempDir dir;
  {
    const auto w = Open(dir);
    REQUIRE_OK(w.status());
    const auto second = Open(dir);
    CHECK_THAT(std::string(second.status().message()), Catch::Contains("another process"));
    REQUIRE(absl::IsAborted(WriteRest(w->get(), kExperts * kVersions + 1)));
  }
  PackDescription other = Description();
  other.quantizer_json = R"({"method":"hqq"})";
  const auto w = PackWriter::CreateResumable(dir / "pack", other);
  CHECK(absl::IsFailedPrecondition(w.status()));
  CHECK_THAT(std::string(w.status().message()), Catch::Contains("other settings"));
  WriteWhole(dir);
  CHECK(absl::IsAlreadyExists(Open(dir).status()));
}

TEST_CASE("a journal that was cut off or damaged loses layers, never correctness") {
  TempDir whole;
  WriteWhole(whole);
  const auto expected = Files(whole / "pack");
  TempDir dir;
  {
    const auto w = Open(dir);
    REQUIRE(absl::IsAborted(WriteRest(w->get(), 3 * kExperts * kVersions)));
  }
  const std::string path = dir / "pack.partial/journal";
  const std::string journal = test::ReadFile(path);
  for (size_t cut = 0; cut <= journal.size(); cut += 7) {
    TempDir copy;
    std::filesystem::copy(dir / "pack.partial", copy / "pack.partial",
                          std::filesystem::copy_options::recursive);
    test::WriteFile(copy / "pack.partial/journal", journal.substr(0, cut));
    const auto w = Open(copy);
    if (cut < journal.find('\n') + 1) {
      CHECK(absl::IsFailedPrecondition(w.status()));
      continue;
    }
    REQUIRE_OK(w.status());
    REQUIRE_OK(WriteRest(w->get(), -1));
    REQUIRE(Files(copy / "pack") == expected);
  }
}

TEST_CASE("verify finds a flipped bit anywhere, and names the place") {
  TempDir dir;
  WriteWhole(dir);
  const PackVerification intact = Verify(dir / "pack");
  CHECK(intact.damage.empty());
  CHECK(intact.records == kLayers * kExperts * kVersions);
  for (const auto& [name, bytes] : Files(dir / "pack")) {
    // The last byte of the manifest is a line feed; another white space in its place says the same.
    const size_t end = name == "moert.json" ? bytes.size() - 1 : bytes.size();
    for (size_t at = 0; at < end; at += name == "moert.json" ? 1 : 211) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      test::WriteFile(dir / "pack/" + name, damaged);
      const auto pool = CreateThreadPool({.threads = 1});
      const auto result = VerifyPack(dir / "pack", Env::Default(), pool->get(), {});
      INFO(name << " byte " << at);
      // A header that no longer parses is already an error of opening.
      const std::string what = result.ok() ? (result->damage.empty() ? "" : result->damage[0])
                                           : std::string(result.status().message());
      REQUIRE_THAT(what, Catch::Contains(name));
    }
    test::WriteFile(dir / "pack/" + name, bytes);
  }
  CHECK(Verify(dir / "pack").damage.empty());
}

}  // namespace
}  // namespace moert
