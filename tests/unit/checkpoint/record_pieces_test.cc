// Records that are read in pieces, in any order and by several threads.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_experts.h"
#include "moert/thread_pool.h"
#include "support/catch.h"
#include "support/heap_peak.h"
#include "support/quantized_fixture.h"

namespace moert {
namespace {

using test::EditCheckpoint;
using test::HeapPeak;
using test::TempDir;

struct Opened {
  explicit Opened(const std::string& dir, bool interleaved = false)
      : config(test::QuantizedConfig(dir)) {
    if (interleaved) config.names.interleaved = true;
    auto opened = Checkpoint::Open(dir);
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
    auto made = CheckpointExperts::Create(checkpoint.get(), &config);
    REQUIRE_OK(made.status());
    experts = *std::move(made);
  }
  RecordLayout Layout(int layer, int expert, bool widen) const {
    const auto layout = ExpertRecordLayout(config.moe.layers[static_cast<size_t>(layer)],
                                           widen ? ExpertFormat{} : experts->stored(layer, expert));
    REQUIRE_OK(layout.status());
    return *layout;
  }
  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<CheckpointExperts> experts;
};

std::vector<std::byte> Filled(const RecordLayout& layout, int with) {
  return std::vector<std::byte>(static_cast<size_t>(layout.bytes), std::byte(with));
}

/// Folders with a config.json.
std::vector<std::string> Fixtures() {
  const std::string root = SourceDir();
  std::vector<std::string> dirs = {root + "/examples/models/tiny-moe"};
  for (const char* folder : {"/tests/data/quantized", "/tests/data/architectures"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root + folder)) {
      if (std::filesystem::exists(entry.path() / "config.json")) dirs.push_back(entry.path());
    }
  }
  return dirs;
}

TEST_CASE("pieces in any order, of two threads, make the record, each of the memory it may take") {
  const std::string dir = GENERATE(from_range(Fixtures()));
  const bool widen = GENERATE(false, true);
  INFO(dir << (widen ? ", widened" : ""));
  const Opened model(dir);
  const CheckpointExperts& experts = *model.experts;
  const auto pool = *CreateThreadPool({.threads = 2});
  for (int layer = 0; layer < model.config.moe.num_layers(); ++layer) {
    for (const int expert : {0, 1}) {
      const RecordLayout layout = model.Layout(layer, expert, widen);
      std::vector<std::byte> whole = Filled(layout, 0);
      std::vector<std::byte> backwards = Filled(layout, 0xff), shared = backwards;
      const HeapPeak heap_of_record;
      REQUIRE_OK(experts.ReadRecord(layer, expert, layout, whole.data()));
      REQUIRE(heap_of_record.bytes() <= experts.scratch_bytes(layer, widen));
      const int64_t pieces = experts.num_pieces(layer, expert, layout);
      for (int64_t i = pieces - 1; i >= 0; --i) {
        const HeapPeak heap;
        REQUIRE_OK(experts.ReadPiece(layer, expert, layout, i, backwards.data()));
        REQUIRE(heap.bytes() <= experts.scratch_bytes(layer, widen));
      }
      CHECK(backwards == whole);
      std::vector<absl::Status> done(static_cast<size_t>(pieces));
      pool->Run(pieces, [&](int64_t i, int) {
        done[static_cast<size_t>(i)] = experts.ReadPiece(layer, expert, layout, i, shared.data());
      });
      for (const absl::Status& status : done) REQUIRE_OK(status);
      CHECK(shared == whole);
    }
  }
}

constexpr int64_t kHidden = 512, kWidth = 1000, kExperts = 2;

/// Row-major weights, bf16.
using Matrix = std::vector<uint16_t>;

Matrix Turned(const Matrix& m, int64_t rows) {
  const int64_t k = std::ssize(m) / rows;
  Matrix turned(m.size());
  for (int64_t i = 0; i < std::ssize(m); ++i) turned[i % k * rows + i / k] = m[i];
  return turned;
}

Matrix Both(const Matrix& gate, const Matrix& up, bool interleaved) {
  Matrix both;
  const int64_t run = interleaved ? kHidden : std::ssize(gate);
  for (auto g = gate.begin(), u = up.begin(); g != gate.end(); g += run, u += run) {
    both.insert(both.end(), g, g + run);
    both.insert(both.end(), u, u + run);
  }
  return both;
}

void Append(const Matrix& m, const std::string& name, const std::vector<int64_t>& shape,
            EditCheckpoint* tensors) {
  test::EditTensor& tensor = (*tensors)[name];
  tensor.dtype = "BF16";
  tensor.shape = shape;
  tensor.bytes.append(reinterpret_cast<const char*>(m.data()), m.size() * 2);
}

enum Form { kApart, kTogether, kInTurns };

/// The same experts in one of the forms, their matrices turned or not.
void Write(const TempDir& dir, Form form, bool turned) {
  const std::string prefix = "model.layers.0.mlp.";
  EditCheckpoint tensors;
  Append(Matrix(kExperts * kHidden), prefix + "gate.weight", {kExperts, kHidden}, &tensors);
  std::mt19937 random(5);
  for (int64_t e = 0; e < kExperts; ++e) {
    Matrix m[3];
    for (Matrix& matrix : m) {
      matrix.resize(kHidden * kWidth);
      for (uint16_t& weight : matrix) weight = static_cast<uint16_t>(random());
    }
    if (form == kApart) {
      const std::string base = prefix + "experts." + std::to_string(e) + ".";
      Append(m[0], base + "gate_proj.weight", {kWidth, kHidden}, &tensors);
      Append(m[1], base + "up_proj.weight", {kWidth, kHidden}, &tensors);
      Append(m[2], base + "down_proj.weight", {kHidden, kWidth}, &tensors);
      continue;
    }
    const Matrix both = Both(m[0], m[1], form == kInTurns);
    const std::vector<int64_t> shape = {kExperts, 2 * kWidth, kHidden};
    const std::vector<int64_t> across = {kExperts, kHidden, 2 * kWidth};
    Append(turned ? Turned(both, 2 * kWidth) : both, prefix + "experts.gate_up_proj",
           turned ? across : shape, &tensors);
    Append(turned ? Turned(m[2], kHidden) : m[2], prefix + "experts.down_proj",
           turned ? std::vector<int64_t>{kExperts, kWidth, kHidden}
                  : std::vector<int64_t>{kExperts, kHidden, kWidth},
           &tensors);
  }
  auto config =
      nlohmann::json::parse(test::ReadFile(test::QuantizedDir("gptq_g128") + "/config.json"));
  config.erase("quantization_config");
  config["hidden_size"] = kHidden;
  config["moe_intermediate_size"] = kWidth;
  test::WriteFile(dir / "config.json", config.dump());
  test::WriteFile(dir / "model.safetensors", test::ToSafetensors(tensors));
}

TEST_CASE("matrices of several pieces are the same in every form of a file") {
  TempDir apart;
  Write(apart, kApart, false);
  const Opened expected(apart.path());
  const RecordLayout layout = expected.Layout(0, 1, false);
  std::vector<std::byte> record = Filled(layout, 0);
  REQUIRE_OK(expected.experts->ReadRecord(0, 1, layout, record.data()));
  ExpertWeights weights, same;
  REQUIRE_OK(expected.experts->ReadExpert(0, 1, &weights));

  const Form form = GENERATE(kApart, kTogether, kInTurns);
  const bool turned = form != kApart && GENERATE(false, true);
  INFO(form << (turned ? ", turned" : ""));
  TempDir dir;
  Write(dir, form, turned);
  const Opened model(dir.path(), form == kInTurns);
  const int64_t pieces = model.experts->num_pieces(0, 1, layout);
  CHECK(pieces == (1 + 3) + (1 + 3) + (1 + 4));
  std::vector<std::byte> backwards = Filled(layout, 0xff);
  for (int64_t i = pieces - 1; i >= 0; --i) {
    const HeapPeak heap;
    REQUIRE_OK(model.experts->ReadPiece(0, 1, layout, i, backwards.data()));
    REQUIRE(heap.bytes() <= model.experts->scratch_bytes(0, false));
  }
  CHECK(backwards == record);
  REQUIRE_OK(model.experts->ReadExpert(0, 1, &same));
  CHECK(same.gate == weights.gate);
  CHECK(same.up == weights.up);
  CHECK(same.down == weights.down);
  CHECK(model.experts->ReadPiece(0, 1, layout, pieces, backwards.data()).code() ==
        absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace moert
