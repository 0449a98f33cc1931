// Golden files: tests/data/packs/v<format version> freezes what a pack of that version is, byte for
// byte, with records of every scheme. A change of those bytes changes the format: raise
// kPackFormatVersion, let readers refuse the old one, and write new files with
// unit.pack.golden_pack_test "[write]"
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "moert/offline/pack.h"
#include "pack/expert_pack.h"
#include "pack/pack_writer.h"
#include "quant/packing.h"
#include "quant/quantized_matrix.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/record_buffer.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

std::string GoldenDir(int version = kPackFormatVersion) {
  return SourceDir() + "/tests/data/packs/v" + std::to_string(version);
}

// Dimensions that are no multiples of anything: padding is part of the format. K of gate and up in
// the first layer is more than a group of 128, and more than two of 64.
MoeModelSpec Model() {
  MoeModelSpec model;
  model.architecture = "golden";
  MoeLayerSpec first;
  first.model_layer = 1;
  first.num_experts = 2;
  first.hidden = 130;
  first.intermediate = 10;
  first.shared_intermediate = 20;
  first.shared_gate = true;
  first.routing.top_k = 2;
  first.routing.renormalize = true;
  MoeLayerSpec second;
  second.model_layer = 3;
  second.num_experts = 1;
  second.hidden = 130;
  second.intermediate = 3;
  second.activation = Activation::kGelu;
  second.routing.kind = RoutingKind::kSigmoidGrouped;
  second.routing.selection_bias = true;
  second.routing.scaling = 2.5f;
  model.layers = {first, second};
  return model;
}

// Every scheme, one in the Hadamard domain, and one version of mixed formats.
PackDescription Description() {
  PackDescription d;
  d.model = Model();
  for (const Scheme& scheme : Scheme::All()) {
    // Younger than the golden files.
    if (scheme.imported() || scheme.Name() == "w8a16_g-1") continue;
    d.versions.push_back(PackVersion::Uniform(scheme));
    if (scheme.Name() == "w3a16_g128_asym") {
      d.versions.push_back(PackVersion::Uniform(scheme, /*hadamard=*/true));
      d.versions.back().name = "turned";
    }
  }
  const Scheme w2 = *Scheme::Parse("w2a16_g-1_asym"), w3 = *Scheme::Parse("w3a16_g-1_asym");
  d.versions.push_back(
      {"mixed", {ExpertFormat::Uniform(w2), {w2, w2, w3, /*hadamard=*/true}}, {{1, 0}, {0}}});
  // From many bits to few, as versions must be.
  const auto bytes = [&](const PackVersion& v) {
    int64_t sum = 0;
    for (int l = 0; l < d.model.num_layers(); ++l) {
      const MoeLayerSpec& layer = d.model.layers[static_cast<size_t>(l)];
      for (int e = 0; e < layer.num_experts; ++e) {
        sum += MakeRecordLayout(layer.hidden, layer.intermediate, v.format(l, e))->bytes;
      }
    }
    return sum;
  };
  std::stable_sort(d.versions.begin(), d.versions.end(),
                   [&](const auto& a, const auto& b) { return bytes(a) > bytes(b); });
  d.quantizer_json = R"({"method":"none"})";
  d.source_identity = "0123456789abcdef";
  d.max_file_bytes = 160 * 1024;
  return d;
}

// Numbers without a library's random generator, which may change: everything follows from place.
uint32_t Mix(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t h = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ c * 0xc2b2ae3du;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  return h ^ h >> 13;
}

QuantizedMatrix Codes(const MatrixLayout& layout, uint32_t seed) {
  QuantizedMatrix q = MakeQuantizedMatrix(layout);
  for (size_t i = 0; i < q.codes.size(); ++i) {
    const uint32_t code = Mix(seed, static_cast<uint32_t>(i), 1) >> 8;
    q.codes[i] = static_cast<uint8_t>(code % (1u << layout.scheme.weight_bits));
    if (layout.scheme.fp8 && (q.codes[i] & 0x7f) == 0x7f) q.codes[i] ^= 1;  // NaN
  }
  for (size_t i = 0; i < q.scales.size(); ++i) {
    q.scales[i] = std::ldexp(static_cast<float>(128 + i % 128), -14);
    if (!q.offsets.empty()) q.offsets[i] = std::ldexp(static_cast<float>(129 + i % 100), -13);
  }
  return q;
}

std::vector<uint16_t> Bf16Weights(const MatrixLayout& layout, uint32_t seed) {
  std::vector<uint16_t> weights(static_cast<size_t>(layout.rows * layout.k));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<uint16_t>(0x3c00 + Mix(seed, static_cast<uint32_t>(i), 2) % 512 +
                                       (i % 3 == 0 ? 0x8000 : 0));
  }
  return weights;
}

uint32_t SeedOf(int layer, int expert, int version, int matrix) {
  return static_cast<uint32_t>(((layer * 8 + expert) * 64 + version) * 4 + matrix);
}

std::vector<std::byte> Record(const RecordLayout& layout, int l, int e, int v) {
  std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
  int matrix = 0;
  for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
    const uint32_t seed = SeedOf(l, e, v, matrix++);
    if (m->scheme.is_bf16()) {
      REQUIRE_OK(PackMatrixBf16(*m, Bf16Weights(*m, seed), record.data()));
    } else {
      REQUIRE_OK(PackMatrix(*m, Codes(*m, seed), record.data()));
    }
  }
  return record;
}

LayerConstants Constants(const MoeLayerSpec& layer, int l) {
  LayerConstants c;
  const auto fill = [&](std::vector<float>* to, int64_t count, uint32_t seed) {
    for (int64_t i = 0; i < count; ++i) {
      to->push_back(
          std::ldexp(static_cast<float>(Mix(seed, static_cast<uint32_t>(i), 3) % 4096), -10) - 2);
    }
  };
  const auto seed = static_cast<uint32_t>(l * 10);
  fill(&c.gate, layer.num_experts * layer.hidden, seed);
  if (layer.routing.selection_bias) fill(&c.selection_bias, layer.num_experts, seed + 1);
  if (layer.shared_gate) fill(&c.shared_gate, layer.hidden, seed + 2);
  if (layer.shared_intermediate > 0) {
    c.shared_layout =
        *MakeRecordLayout(layer.hidden, layer.shared_intermediate, ExpertFormat::Uniform(Scheme{}));
    c.shared_expert = Record(c.shared_layout, l, 7, 63);
  }
  return c;
}

absl::Status Write(const std::string& dir) {
  const PackDescription d = Description();
  const auto writer = PackWriter::Create(dir, d);
  if (!writer.ok()) return writer.status();
  for (int l = 0; l < d.model.num_layers(); ++l) {
    const MoeLayerSpec& layer = d.model.layers[static_cast<size_t>(l)];
    for (int v = 0; v < static_cast<int>(d.versions.size()); ++v) {
      for (int e = 0; e < layer.num_experts; ++e) {
        const auto record = Record(*(*writer)->Layout(l, e, v), l, e, v);
        if (auto s = (*writer)->WriteRecord(l, e, v, record); !s.ok()) return s;
      }
    }
    if (auto s = (*writer)->WriteConstants(l, Constants(layer, l)); !s.ok()) return s;
  }
  return (*writer)->Finish();
}

std::map<std::string, std::string> Files(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(dir)) {
    files[e.path().filename().string()] = test::ReadFile(e.path().string());
  }
  return files;
}

TEST_CASE("[write] the golden files", "[.][write]") {
  std::filesystem::create_directories(std::filesystem::path(GoldenDir()).parent_path());
  REQUIRE_OK(Write(GoldenDir()));
}

TEST_CASE("a pack written today is the golden one, byte for byte") {
  test::TempDir dir;
  REQUIRE_OK(Write(dir / "pack"));
  const auto golden = Files(GoldenDir()), written = Files(dir / "pack");
  REQUIRE(golden.size() > 2);
  std::vector<std::string> golden_names, names;
  for (const auto& [name, bytes] : golden) golden_names.push_back(name);
  for (const auto& [name, bytes] : written) names.push_back(name);
  REQUIRE(names == golden_names);
  for (const auto& [name, bytes] : golden) {
    const std::string& other = written.at(name);
    INFO(name << ": the pack format changed, see the top of this file. First difference at "
              << std::mismatch(bytes.begin(), bytes.end(), other.begin(), other.end()).first -
                     bytes.begin());
    CHECK((other == bytes));
  }
}

TEST_CASE("the golden pack is read back to every code and scale") {
  const PackDescription d = Description();
  const auto pack = OpenExpertPack(GoldenDir());
  REQUIRE_OK(pack.status());
  CHECK((*pack)->model() == d.model);
  REQUIRE((*pack)->num_versions() == static_cast<int>(d.versions.size()));
  for (int l = 0; l < d.model.num_layers(); ++l) {
    const MoeLayerSpec& layer = d.model.layers[static_cast<size_t>(l)];
    for (int v = 0; v < (*pack)->num_versions(); ++v) {
      CHECK((*pack)->version_name(v) == d.versions[static_cast<size_t>(v)].name);
      for (int e = 0; e < layer.num_experts; ++e) {
        INFO("layer " << l << " expert " << e << " version " << (*pack)->version_name(v));
        const RecordLayout& layout = (*pack)->layout(l, e, v);
        CHECK(layout.format == d.versions[static_cast<size_t>(v)].format(l, e));
        const test::RecordBuffer record(layout.bytes);
        REQUIRE_OK((*pack)->ReadRecord(l, e, v, record.span()));
        int matrix = 0;
        for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
          const uint32_t seed = SeedOf(l, e, v, matrix++);
          if (m->scheme.is_bf16()) {
            std::vector<float> weights;
            REQUIRE_OK(UnpackMatrix(*m, record.data(), &weights));
            std::vector<uint16_t> bits;
            for (const float w : weights) bits.push_back(F32ToBf16(w));
            CHECK(bits == Bf16Weights(*m, seed));
          } else {
            QuantizedMatrix got;
            REQUIRE_OK(UnpackCodes(*m, record.data(), &got));
            const QuantizedMatrix want = Codes(*m, seed);
            CHECK(got.codes == want.codes);
            CHECK(got.scales == want.scales);
            CHECK(got.offsets == want.offsets);
          }
        }
      }
    }
    const LayerConstants want = Constants(layer, l);
    const auto got = (*pack)->ReadConstants(l);
    REQUIRE_OK(got.status());
    CHECK(got->gate == want.gate);
    CHECK(got->selection_bias == want.selection_bias);
    CHECK(got->shared_gate == want.shared_gate);
    CHECK(got->shared_expert == want.shared_expert);
  }
}

TEST_CASE("another format version is refused, and both versions are named") {
  test::TempDir dir;
  for (const int other : {kPackFormatVersion + 1, kPackFormatVersion - 1, 1000}) {
    const std::string copy = dir / std::to_string(other);
    std::filesystem::copy(GoldenDir(), copy);
    std::string manifest = test::ReadFile(copy + "/moert.json");
    const std::string field = "\"format_version\":" + std::to_string(kPackFormatVersion);
    const size_t at = manifest.find(field);
    REQUIRE(at != std::string::npos);
    manifest.replace(at, field.size(), "\"format_version\":" + std::to_string(other));
    test::WriteFile(copy + "/moert.json", manifest);
    const absl::Status status = OpenExpertPack(copy).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(
        std::string(status.message()),
        Catch::StartsWith(copy + "/moert.json") &&
            Catch::Contains("is of pack format version " + std::to_string(other) +
                            ", this build reads version " + std::to_string(kPackFormatVersion)));
  }
}

}  // namespace
}  // namespace moert
