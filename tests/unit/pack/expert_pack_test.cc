#include "pack/expert_pack.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "moert/offline/checkpoint.h"
#include "pack/pack_writer.h"
#include "support/catch.h"
#include "support/fault_env.h"
#include "support/record_buffer.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;
using test::RecordBuffer;
using test::TempDir;

constexpr int kLayers = 2, kExperts = 3;

// Two layers of three experts in two versions, the second with two formats. Records are filled with
// bytes that depend on their key, so that no record can stand for another.
PackDescription Description() {
  PackDescription d;
  d.model.architecture = "test";
  for (int i = 0; i < kLayers; ++i) {
    MoeLayerSpec l;
    l.model_layer = i + 1;
    l.num_experts = kExperts;
    l.hidden = 72;
    l.intermediate = 24;
    l.routing.kind = RoutingKind::kSigmoidGrouped;
    l.routing.top_k = 2;
    l.routing.scaling = 2.5f;
    l.routing.renormalize = true;
    l.routing.selection_bias = i == 1;
    l.shared_intermediate = i == 0 ? 40 : 0;
    l.shared_gate = i == 0;
    d.model.layers.push_back(l);
  }
  const Scheme w4 = *Scheme::Parse("w4a16_g128"), w2 = *Scheme::Parse("w2a16_g64_asym");
  PackVersion mixed{"mixed", {ExpertFormat::Uniform(w4), {w2, w2, w4}}, {{0, 1, 1}, {1, 0, 0}}};
  d.versions = {PackVersion::Uniform(Scheme{}), mixed};
  d.quantizer_json = R"({"method":"rtn"})";
  d.source_identity = "0123456789abcdef";
  d.max_file_bytes = 40 * 1024;  // several files
  return d;
}

std::byte Fill(int layer, int expert, int version, int64_t i) {
  return static_cast<std::byte>((layer * 31 + expert * 7 + version * 3 + i * 13) & 0xff);
}

std::vector<std::byte> Record(const RecordLayout& layout, int l, int e, int v) {
  std::vector<std::byte> r(static_cast<size_t>(layout.bytes));
  for (size_t i = 0; i < r.size(); ++i) r[i] = Fill(l, e, v, static_cast<int64_t>(i));
  return r;
}

LayerConstants Constants(const MoeLayerSpec& l, int layer) {
  LayerConstants c;
  const auto fill = [&](std::vector<float>* v, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      v->push_back(static_cast<float>(i) + 0.25f * static_cast<float>(layer));
  };
  if (l.routing.kind != RoutingKind::kExternal) fill(&c.gate, l.num_experts * l.hidden);
  if (l.routing.selection_bias) fill(&c.selection_bias, l.num_experts);
  if (l.shared_gate) fill(&c.shared_gate, l.hidden);
  if (l.shared_intermediate > 0) {
    c.shared_layout =
        *MakeRecordLayout(l.hidden, l.shared_intermediate, ExpertFormat::Uniform(Scheme{}));
    c.shared_expert = Record(c.shared_layout, 9, 9, 9);
  }
  return c;
}

absl::Status WriteAll(const std::string& dir, const PackDescription& d) {
  const auto w = PackWriter::Create(dir, d);
  if (!w.ok()) return w.status();
  for (int l = 0; l < kLayers; ++l) {
    for (int v = 0; v < 2; ++v) {
      for (int e = 0; e < kExperts; ++e) {
        const auto s = (*w)->WriteRecord(l, e, v, Record(*(*w)->Layout(l, e, v), l, e, v));
        if (!s.ok()) return s;
      }
    }
    const auto s = (*w)->WriteConstants(l, Constants(d.model.layers[static_cast<size_t>(l)], l));
    if (!s.ok()) return s;
  }
  return (*w)->Finish();
}

size_t Entries(const std::string& dir) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(dir)) ++n;
  return n;
}

TEST_CASE("layers that the host routes have no gate in a pack") {
  TempDir dir;
  PackDescription d = Description();
  const bool all = GENERATE(false, true);  // then there are no constants at all
  for (int i = all ? 0 : 1; i < kLayers; ++i) {
    MoeLayerSpec& layer = d.model.layers[static_cast<size_t>(i)];
    layer.routing = {};
    layer.routing.kind = RoutingKind::kExternal;
    layer.routing.top_k = 2;
    layer.shared_intermediate = 0;
    layer.shared_gate = false;
  }
  REQUIRE_OK(WriteAll(dir / "pack", d));
  const auto pack = OpenExpertPack(dir / "pack");
  REQUIRE_OK(pack.status());
  CHECK((*pack)->model() == d.model);
  const auto constants = (*pack)->ReadConstants(1);
  REQUIRE_OK(constants.status());
  CHECK(constants->gate.empty());
  CHECK((*pack)->ReadConstants(0)->gate.empty() == all);
}

TEST_CASE("a pack gives back what was written") {
  TempDir dir;
  const PackDescription d = Description();
  REQUIRE_OK(WriteAll(dir / "pack", d));
  CHECK(Entries(dir.path()) == 1);  // no temporary folder is left

  for (const bool direct : {true, false}) {
    ExpertPackOptions options;
    options.direct_io = direct;
    const auto pack = OpenExpertPack(dir / "pack", options);
    REQUIRE_OK(pack.status());
    const ExpertSource& s = **pack;
    CHECK(s.model() == d.model);
    CHECK(s.name() == dir / "pack");
    REQUIRE(s.num_versions() == 2);
    CHECK(s.version_name(0) == "bf16");
    CHECK(s.version_name(1) == "mixed");
    for (int round = 0; round < 2; ++round) {
      for (int l = 0; l < kLayers; ++l) {
        for (int e = 0; e < kExperts; ++e) {
          for (int v = 0; v < 2; ++v) {
            const RecordLayout& layout = s.layout(l, e, v);
            CHECK(layout.format == d.versions[static_cast<size_t>(v)].format(l, e));
            const RecordBuffer buffer(layout.bytes);
            REQUIRE_OK(s.ReadRecord(l, e, v, buffer.span()));
            const std::vector<std::byte> expected = Record(layout, l, e, v);
            REQUIRE(std::memcmp(buffer.data(), expected.data(), expected.size()) == 0);
          }
        }
      }
    }
    for (int l = 0; l < kLayers; ++l) {
      const LayerConstants want = Constants(d.model.layers[static_cast<size_t>(l)], l);
      const auto got = s.ReadConstants(l);
      REQUIRE_OK(got.status());
      CHECK(got->gate == want.gate);
      CHECK(got->selection_bias == want.selection_bias);
      CHECK(got->shared_gate == want.shared_gate);
      CHECK(got->shared_expert == want.shared_expert);
      CHECK(got->shared_layout.bytes == want.shared_layout.bytes);
    }
  }
}

TEST_CASE("the files of a pack are legal safetensors with aligned records") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  int records = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "pack")) {
    const std::string path = entry.path().string();
    if (entry.path().filename().string().rfind("experts-", 0) != 0) continue;
    ++files;
    const auto c = Checkpoint::Open(path);
    REQUIRE_OK(c.status());
    for (const TensorInfo& t : (*c)->tensors()) {
      CHECK(t.dtype == DType::kU8);
      CHECK(t.offset % kRecordAlignment == 0);
      CHECK(t.bytes % kRecordAlignment == 0);
      ++records;
    }
    CHECK(entry.file_size() <= 40 * 1024 + 4096);
  }
  CHECK(records == kLayers * kExperts * 2);
  CHECK(files >= 3);
}

TEST_CASE("a damaged record is reported by file, tensor and place, the others still read") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const json manifest = json::parse(test::ReadFile(dir / "pack/moert.json"));
  // Layer 1, expert 2, version 1: the last of 12.
  const json& record = manifest["records"][11];
  const std::string name = manifest["files"][record[0].get<size_t>()]["name"];
  const std::string path = dir / "pack/" + name;
  std::string bytes = test::ReadFile(path);
  bytes[record[1].get<size_t>() + record[2].get<size_t>() - 1] ^= 0x10;
  test::WriteFile(path, bytes);

  const auto pack = OpenExpertPack(dir / "pack");
  REQUIRE_OK(pack.status());
  const RecordBuffer buffer(1 << 16);
  const absl::Status status = (*pack)->ReadRecord(1, 2, 1, buffer.span());
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  const std::string message(status.message());
  CHECK_THAT(message, Catch::StartsWith(path + ": tensor \"layers.1.experts.2.mixed\" (layer 1, "
                                               "expert 2, version mixed) is damaged"));
  CHECK_FALSE((*pack)->ReadRecord(1, 2, 1, buffer.span()).ok());
  REQUIRE_OK((*pack)->ReadRecord(1, 1, 1, buffer.span()));
}

TEST_CASE("damage is found in a record that was read before") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const json manifest = json::parse(test::ReadFile(dir / "pack/moert.json"));
  const json& record = manifest["records"][0];
  const std::string path =
      dir / "pack/" + manifest["files"][record[0].get<size_t>()]["name"].get<std::string>();
  const std::string intact = test::ReadFile(path);
  const auto pack = OpenExpertPack(dir / "pack");
  REQUIRE_OK(pack.status());
  const RecordBuffer buffer(1 << 16);
  const size_t offset = record[1].get<size_t>(), bytes = record[2].get<size_t>();
  for (size_t at = 0; at < bytes; at += 97) {
    REQUIRE_OK((*pack)->ReadRecord(0, 0, 0, buffer.span()));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset + at));
    file.put(static_cast<char>(intact[offset + at] ^ (1 << at % 8)));
    file.close();
    CHECK((*pack)->ReadRecord(0, 0, 0, buffer.span()).code() == absl::StatusCode::kDataLoss);
    test::WriteFile(path, intact);
  }
}

TEST_CASE("damaged constants are reported") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  std::string bytes = test::ReadFile(dir / "pack/constants.safetensors");
  bytes.back() ^= 1;  // the selection bias of layer 1
  test::WriteFile(dir / "pack/constants.safetensors", bytes);
  const auto pack = OpenExpertPack(dir / "pack");
  REQUIRE_OK(pack.status());
  CHECK((*pack)->ReadConstants(0).ok());
  const auto bad = (*pack)->ReadConstants(1);
  CHECK(bad.status().code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(bad.status().message()),
             Catch::Contains("constants.safetensors: the constants of layer 1"));
}

TEST_CASE("wrong keys and small buffers are refused") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const auto pack = OpenExpertPack(dir / "pack");
  REQUIRE_OK(pack.status());
  const RecordBuffer buffer(1 << 16);
  for (const auto& [l, e, v] : {std::tuple(-1, 0, 0), std::tuple(2, 0, 0), std::tuple(0, 3, 0),
                                std::tuple(0, 0, 2), std::tuple(0, -1, 0)}) {
    CHECK((*pack)->ReadRecord(l, e, v, buffer.span()).code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK((*pack)->ReadRecord(0, 0, 0, buffer.span().subspan(0, 4096)).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK_FALSE((*pack)->ReadConstants(2).ok());
}

TEST_CASE("a pack whose files are missing or cut does not open") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const std::string file = dir / "pack/experts-00001.safetensors";
  const std::string bytes = test::ReadFile(file);
  test::WriteFile(file, bytes.substr(0, bytes.size() - 1));
  auto pack = OpenExpertPack(dir / "pack");
  CHECK(pack.status().code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(pack.status().message()),
             Catch::StartsWith(file) && Catch::Contains("(truncated)"));
  std::filesystem::remove(file);
  pack = OpenExpertPack(dir / "pack");
  CHECK(pack.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(pack.status().message()), Catch::Contains(file));
  CHECK(OpenExpertPack(dir / "nothing").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a malformed manifest is refused, and the message names what is wrong") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const std::string path = dir / "pack/moert.json";
  const json good = json::parse(test::ReadFile(path));
  struct Case {
    const char* pointer;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"/format", "zip", "format is \"zip\", legal is \"moert expert pack\""},
      {"/format_version", 2, "is of pack format version 2, this build reads version 1"},
      {"/model", 1, "model is not an object"},
      {"/model/layers/1/top_k", 0, "model: layer 1: top_k is 0, legal is"},
      {"/model/layers/1/top_k", 4, "model: MoE layer 1: top_k is 4, legal is 1 to 3"},
      {"/model/layers/0/routing", "magic",
       "layer 0: routing is \"magic\", legal are: softmax_topk"},
      {"/model/layers/0/hidden", 4611686018427387904, "layer 0: hidden is 4611686018427387904"},
      {"/versions", json::array(), "versions is empty"},
      {"/versions/0/formats/0/1", "w5", "version 0: unknown scheme \"w5\""},
      {"/versions/0/formats", json::array(), "version 0: formats is empty"},
      {"/versions/1/assignment/0/2", 2, "version 1: assignment of layer 0: legal is 0 to 1"},
      {"/versions/1/assignment/0", {0}, "assignment of layer 0 must list 3 experts"},
      {"/files/0/name", "../x", "file 0: its name is not a plain file name"},
      {"/files/0/name", "/etc/passwd", "file 0: its name is not a plain file name"},
      {"/files/0/bytes", -1, "file 0: bytes is -1, legal is"},
      {"/constants/name", "a/b", "constants: its name is not a plain file name"},
      {"/constants/checksums", {"00"}, "constants: a checksum is not 16 hex digits"},
      {"/constants/checksums", json::array(), "constants: checksums must list all layers"},
      {"/records", json::array(), "records has 0 entries, but model and versions need 12"},
      {"/records/3/0", 99, "record layers.0.experts.0.mixed: file is 99, but there are"},
      {"/records/3/1", 4097, "record layers.0.experts.0.mixed: offset is 4097, legal is"},
      {"/records/3/1", 9223372036854771712, "offset is 9223372036854771712, legal is"},
      {"/records/3/1", 1048576, "offset is 1048576, legal is"},
      {"/records/3/2", 1, "bytes is 1, but its format takes"},
      {"/records/3/3", "xyz", "checksum 16 hex digits"},
      {"/records/3", 5, "not a list of file, offset, bytes and checksum"},
      {"/quantizer", 5, "quantizer is not an object"},
  };
  for (const Case& c : cases) {
    json bad = good;
    bad[json::json_pointer(c.pointer)] = c.value;
    test::WriteFile(path, bad.dump());
    const auto pack = OpenExpertPack(dir / "pack");
    INFO(c.pointer << " = " << c.value.dump());
    REQUIRE_FALSE(pack.ok());
    const std::string message(pack.status().message());
    CHECK_THAT(message, Catch::StartsWith(path));
    CHECK_THAT(message, Catch::Contains(c.message));
  }
  for (const auto& [key, value] : good.items()) {
    if (key == "source_identity" || key == "quantizer") continue;
    json bad = good;
    bad.erase(key);
    test::WriteFile(path, bad.dump());
    INFO("without " << key);
    CHECK_FALSE(OpenExpertPack(dir / "pack").ok());
  }
  json swapped = good;  // then version 0 would not be the best
  std::swap(swapped["versions"][0], swapped["versions"][1]);
  test::WriteFile(path, swapped.dump());
  CHECK_FALSE(OpenExpertPack(dir / "pack").ok());
  test::WriteFile(path, good.dump());
  CHECK(OpenExpertPack(dir / "pack").ok());
}

TEST_CASE("every failing open or read of a pack is an error, and the next try succeeds") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const RecordBuffer buffer(1 << 16);
  const auto use = [&](Env* env) -> absl::Status {
    ExpertPackOptions options;
    options.env = env;
    const auto pack = OpenExpertPack(dir / "pack", options);
    if (!pack.ok()) return pack.status();
    const absl::Status s = (*pack)->ReadRecord(0, 1, 0, buffer.span());
    if (!s.ok()) return s;
    return (*pack)->ReadConstants(0).status();
  };
  test::FaultEnv counting;
  REQUIRE_OK(use(&counting));
  REQUIRE(counting.reads > 5);
  REQUIRE(counting.opens > 3);
  for (int64_t n = 0; n < counting.reads; ++n) {
    test::FaultEnv env;
    env.fail_read = n;
    const absl::Status s = use(&env);
    INFO(n << " " << s.ToString());
    CHECK(s.code() == absl::StatusCode::kUnavailable);
    CHECK_THAT(std::string(s.message()), Catch::Contains("injected read"));
    env.fail_read = -1;
    CHECK(use(&env).ok());
  }
  for (int64_t n = 0; n < counting.opens; ++n) {
    test::FaultEnv env;
    env.fail_open = n;
    CHECK(use(&env).code() == absl::StatusCode::kUnavailable);
  }
}

TEST_CASE("records are read from many threads") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  const auto pack = OpenExpertPack(dir / "pack");
  REQUIRE_OK(pack.status());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const RecordBuffer buffer(1 << 16);
      for (int i = 0; i < 200; ++i) {
        const int l = (i + t) % kLayers, e = i % kExperts, v = i / 3 % 2;
        const absl::Status s = (*pack)->ReadRecord(l, e, v, buffer.span());
        const auto want = Record((*pack)->layout(l, e, v), l, e, v);
        if (!s.ok() || std::memcmp(buffer.data(), want.data(), want.size()) != 0) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("a writer that does not finish leaves nothing behind") {
  TempDir dir;
  {
    const auto w = PackWriter::Create(dir / "pack", Description());
    REQUIRE_OK(w.status());
    REQUIRE_OK((*w)->WriteRecord(0, 0, 0, Record(*(*w)->Layout(0, 0, 0), 0, 0, 0)));
    CHECK(Entries(dir.path()) == 1);
    CHECK((*w)->Finish().code() == absl::StatusCode::kFailedPrecondition);
  }
  CHECK(Entries(dir.path()) == 0);
}

TEST_CASE("records out of order, of a wrong size, or twice are refused") {
  TempDir dir;
  const auto w = PackWriter::Create(dir / "pack", Description());
  REQUIRE_OK(w.status());
  const auto record = Record(*(*w)->Layout(0, 0, 0), 0, 0, 0);
  CHECK((*w)->WriteRecord(0, 1, 0, record).code() == absl::StatusCode::kFailedPrecondition);
  CHECK((*w)->WriteRecord(0, 0, 0, absl::MakeConstSpan(record).subspan(1)).code() ==
        absl::StatusCode::kInvalidArgument);
  REQUIRE_OK((*w)->WriteRecord(0, 0, 0, record));
  CHECK((*w)->WriteRecord(0, 0, 0, record).code() == absl::StatusCode::kFailedPrecondition);
  CHECK((*w)->WriteConstants(0, LayerConstants()).code() == absl::StatusCode::kInvalidArgument);
  CHECK((*w)->WriteConstants(1, LayerConstants()).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("an existing folder is not overwritten, a missing parent is an error") {
  TempDir dir;
  REQUIRE_OK(WriteAll(dir / "pack", Description()));
  CHECK(WriteAll(dir / "pack", Description()).code() == absl::StatusCode::kAlreadyExists);
  CHECK(WriteAll(dir / "no/such/pack", Description()).code() == absl::StatusCode::kNotFound);
  CHECK(OpenExpertPack(dir / "pack").ok());
}

TEST_CASE("a full disk is an error that leaves nothing behind") {
  TempDir dir;
  // A limit on the size of files is met like a full disk: write fails.
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 16 * 1024;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const absl::Status status = WriteAll(dir / "pack", Description());
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(std::string(status.message()), Catch::Contains("experts-00000.safetensors: write at"));
  CHECK(Entries(dir.path()) == 0);
}

}  // namespace
}  // namespace moert
