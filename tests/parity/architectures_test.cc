// Every supported architecture against the logits that the reference library gives for a tiny
// random checkpoint (tests/data/architectures): prefill and decode, batch 1 and 3, everything
// resident and the smallest budget there is.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bf16.h"
#include "host/engine_runner.h"
#include "moert/source/expert_source.h"
#include "support/architecture_fixture.h"
#include "support/edit_checkpoint.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::ArchitectureDir;
using test::ArchitectureNames;
using test::ArchitectureRun;
using test::EditCheckpoint;
using test::EditTensor;
using test::ReadReferenceCase;
using test::ReferenceCase;
using test::SortedDifferences;
using test::TempDir;

EngineOptions Options(ActivationNumerics activation) {
  EngineOptions options;
  options.threads = 1;
  options.max_tokens_per_forward = 60;
  options.activation = activation;
  return options;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void CheckParity(const std::string& name) {
  TempDir cache;
  for (const char* which : {"short", "long"}) {
    const ReferenceCase reference = ReadReferenceCase(name, which);
    for (const ActivationNumerics activation :
         {ActivationNumerics::kF32, ActivationNumerics::kBF16}) {
      std::vector<float> resident;
      for (const bool minimal : {false, true}) {
        ArchitectureRun run(ArchitectureDir(name), cache.path(), Options(activation), minimal);
        for (const int64_t batch : {3, 1}) {
          INFO(name << " " << which << (minimal ? " minimal" : " resident") << " batch " << batch);
          const std::vector<float> logits = run.Logits(reference, batch);
          const std::vector<float> d =
              SortedDifferences(logits, reference.logits, run.config.vocab_size);
          if (activation == ActivationNumerics::kF32) {
            CHECK(d.back() < 1e-4f);
          } else {
            // bf16 activations may tip a routing decision; that position then differs by more.
            CHECK(d[d.size() / 2] < 0.015f);
            CHECK(d[d.size() * 9 / 10] < 0.025f);
          }
          if (batch == 1) continue;
          if (minimal) {
            CHECK(SameBits(logits, resident));
            CHECK(run.engine->stats().evictions > 0);
          } else {
            resident = logits;
          }
        }
      }
    }
  }
}

TEST_CASE("every fixture gives the reference's logits") {
  CheckParity(GENERATE(from_range(ArchitectureNames())));
}

TEST_CASE("every kind of layer gives the same bits however a sequence is cut into steps") {
  TempDir cache;
  for (const char* name : {"qwen3_moe", "mixtral", "deepseek_v3", "qwen3_next", "gpt_oss", "llama4",
                           "mimo_v2_flash", "glm_moe_dsa", "minimax_m3_vl", "deepseek_v4"}) {
    ArchitectureRun run(ArchitectureDir(name), cache.path(), Options(ActivationNumerics::kF32),
                        false);
    ReferenceCase c = ReadReferenceCase(name, "long");
    const std::vector<float> whole = run.Logits(c, 1);
    for (const int64_t prefill : {1, 2, 7, 16}) {
      INFO(name << " prefill " << prefill);
      c.prefill = prefill;
      CHECK(SameBits(run.Logits(c, 1), whole));
    }
  }
}

TEST_CASE("a sequence goes back to a length, or to its beginning, and gives what a new one gives") {
  TempDir cache;
  for (const char* name : {"qwen3_moe", "deepseek_v3", "qwen3_next", "glm_moe_dsa", "gpt_oss",
                           "minimax_m3_vl", "deepseek_v4"}) {
    INFO(name);
    ArchitectureRun run(ArchitectureDir(name), cache.path(), Options(ActivationNumerics::kF32),
                        false);
    const ReferenceCase c = ReadReferenceCase(name, "long");
    const auto all = absl::MakeConstSpan(c.tokens[0]), others = absl::MakeConstSpan(c.tokens[1]);
    const auto sequence = run.decoder->MakeSequence(24);
    host::AlignedVector<float> hidden;
    const auto step = [&](absl::Span<const int32_t> tokens) {
      const host::SequenceInput input = {sequence.get(), 0, tokens};
      REQUIRE_OK(run.decoder->Step(host::StepPhase::kPrefill, {&input, 1}, &hidden));
      return std::vector<float>(hidden.end() - run.config.hidden_size, hidden.end());
    };
    const std::vector<float> first = step(all.subspan(0, 17));
    step(others.subspan(0, 6));
    sequence->Rewind(sequence->length());
    CHECK(sequence->length() == 23);
    sequence->Rewind(11);
    const bool summed = name == std::string("qwen3_next") || name == std::string("deepseek_v4");
    REQUIRE(sequence->length() == (summed ? 0 : 11));
    CHECK(SameBits(step(all.subspan(sequence->length(), 17 - sequence->length())), first));
  }
}

// Fails in the last MoE layer of a step, when asked to.
class FailingRunner final : public host::EngineRunner {
 public:
  FailingRunner(Engine* engine, int64_t max_rows)
      : EngineRunner(engine, max_rows), last_(engine->model().num_layers() - 1) {}
  absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) override {
    if (moe_layer == last_ && std::exchange(fail_, false)) return absl::CancelledError("asked to");
    return EngineRunner::Forward(moe_layer, x, rows, out);
  }
  void FailNext() { fail_ = true; }

 private:
  const int last_;
  bool fail_ = false;
};

TEST_CASE("a step that failed can be repeated: no layer's state has moved") {
  TempDir cache;
  for (const char* name :
       {"deepseek_v3", "qwen3_next", "glm_moe_dsa", "minimax_m3_vl", "deepseek_v4"}) {
    INFO(name);
    ArchitectureRun run(ArchitectureDir(name), cache.path(), Options(ActivationNumerics::kF32),
                        false);
    FailingRunner runner(run.engine.get(), 60);
    auto decoder = host::Decoder::Load(*run.checkpoint, run.config, run.pool.get(), &runner);
    REQUIRE_OK(decoder.status());
    const ReferenceCase c = ReadReferenceCase(name, "short");
    const auto all = absl::MakeConstSpan(c.tokens[0]);
    const auto run_all = [&](bool failing) {
      const auto sequence = (*decoder)->MakeSequence(15);
      host::AlignedVector<float> hidden;
      for (const auto& part : {all.subspan(0, 5), all.subspan(5, 1), all.subspan(6, 7)}) {
        const host::SequenceInput input = {sequence.get(), 0, part};
        if (failing) {
          runner.FailNext();
          const auto failed = (*decoder)->Step(host::StepPhase::kPrefill, {&input, 1}, &hidden);
          REQUIRE(absl::IsCancelled(failed));
        }
        REQUIRE_OK((*decoder)->Step(host::StepPhase::kPrefill, {&input, 1}, &hidden));
      }
      return std::vector<float>(hidden.begin(), hidden.end());
    };
    CHECK(SameBits(run_all(true), run_all(false)));
  }
}

TEST_CASE("a configuration means the same as published and as transformers 5 writes it") {
  for (const std::string& name : ArchitectureNames()) {
    const std::string newer = ArchitectureDir(name) + "/config.transformers5.json";
    if (!std::filesystem::exists(newer)) continue;
    INFO(name);
    const auto a = LoadHfConfig(ArchitectureDir(name));
    const auto b = ParseHfConfig(test::ReadFile(newer), "transformers 5");
    REQUIRE_OK(a.status());
    REQUIRE_OK(b.status());
    CHECK(a->moe.layers == b->moe.layers);
    CHECK(a->mixers == b->mixers);
    CHECK(a->latent == b->latent);
    CHECK(a->indexer == b->indexer);
    CHECK(a->compressed == b->compressed);
    CHECK(a->hyper == b->hyper);
    CHECK(a->delta_net == b->delta_net);
    CHECK(a->rope == b->rope);
    CHECK(a->head_dim == b->head_dim);
    CHECK(a->value_dim == b->value_dim);
    CHECK(a->value_scale == b->value_scale);
    CHECK(a->window == b->window);
    CHECK(a->attention_scale == b->attention_scale);
    CHECK(a->activation == b->activation);
    CHECK(a->norm_eps == b->norm_eps);
    CHECK(a->is_moe == b->is_moe);
    CHECK(a->qk_norm == b->qk_norm);
    CHECK(a->qkv_bias == b->qkv_bias);
    CHECK(a->tie_word_embeddings == b->tie_word_embeddings);
  }
}

// Moves the per-expert tensors of every layer into tensors of all experts.
void Fuse(EditCheckpoint* c, const HfConfig& config, bool together, bool transposed,
          const std::string& prefix, const std::string& suffix) {
  for (const MoeLayerSpec& l : config.moe.layers) {
    const auto collect = [&](std::initializer_list<Projection> parts) {
      EditTensor all{"BF16", {l.num_experts, 0, 0}, ""};
      for (int e = 0; e < l.num_experts; ++e) {
        int64_t rows = 0;
        for (const Projection p : parts) {
          const auto it = c->find(config.names.Expert(l.model_layer, e, p));
          REQUIRE(it != c->end());
          all.bytes += it->second.bytes;
          rows += it->second.shape[0];
          all.shape[2] = it->second.shape[1];
          c->erase(it);
        }
        all.shape[1] = rows;
      }
      if (transposed) test::SwapLast(&all);
      return all;
    };
    const std::string stem = "model.layers." + std::to_string(l.model_layer) + "." + prefix;
    if (together) {
      (*c)[stem + "gate_up_proj" + suffix] = collect({Projection::kGate, Projection::kUp});
    } else {
      (*c)[stem + "gate_proj" + suffix] = collect({Projection::kGate});
      (*c)[stem + "up_proj" + suffix] = collect({Projection::kUp});
    }
    (*c)[stem + "down_proj" + suffix] = collect({Projection::kDown});
  }
}

void Convert(EditCheckpoint* c, const char* dtype) {
  for (auto& [name, t] : *c) {
    std::string out;
    for (size_t i = 0; i < t.bytes.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, &t.bytes[i], 2);
      const float f = Bf16ToF32(bits);
      const uint16_t half = F32ToF16(f);
      if (dtype == std::string("F16")) {
        // Small values lose bits in f16: those are stored as they are in both.
        REQUIRE(std::fabs(F16ToF32(half) - f) < 1e-6f);
        out.append(reinterpret_cast<const char*>(&half), 2);
      } else {
        out.append(reinterpret_cast<const char*>(&f), 4);
      }
    }
    t.bytes = std::move(out);
    t.dtype = dtype;
  }
}

// The logits of a checkpoint that says the same in another layout are the same, to the bit.
void CheckLayout(const std::string& name, const EditCheckpoint& edited, bool exact = true) {
  TempDir cache, dir;
  std::filesystem::copy_file(ArchitectureDir(name) + "/config.json", dir / "config.json");
  test::WriteFile(dir / "model.safetensors", test::ToSafetensors(edited));
  const ReferenceCase reference = ReadReferenceCase(name, "short");
  const EngineOptions options = Options(ActivationNumerics::kF32);
  ArchitectureRun original(ArchitectureDir(name), cache.path(), options, false);
  ArchitectureRun other(dir.path(), cache.path(), options, true);
  const std::vector<float> a = original.Logits(reference, 3), b = other.Logits(reference, 3);
  if (exact) {
    CHECK(SameBits(a, b));
  } else {
    CHECK(SortedDifferences(b, a, original.config.vocab_size).back() < 1e-4f);
  }
}

TEST_CASE("experts in one tensor a layer, straight and transposed, together and apart") {
  for (const char* name : {"qwen3_moe", "mixtral"}) {
    const auto config = LoadHfConfig(ArchitectureDir(name));
    REQUIRE_OK(config.status());
    const std::string block = name == std::string("mixtral") ? "block_sparse_moe." : "mlp.";
    for (const bool together : {true, false}) {
      for (const bool transposed : {true, false}) {
        INFO(name << " together " << together << " transposed " << transposed);
        EditCheckpoint c = test::ReadForEdit(ArchitectureDir(name));
        Fuse(&c, *config, together, transposed, block + "experts.", "");
        CheckLayout(name, c);
      }
    }
    EditCheckpoint c = test::ReadForEdit(ArchitectureDir(name));
    Fuse(&c, *config, false, false, block + "switch_mlp.", ".weight");  // MLX
    CheckLayout(name, c);
  }
}

TEST_CASE("mixtral under the names of newer exporters") {
  const auto config = LoadHfConfig(ArchitectureDir("mixtral"));
  EditCheckpoint c = test::ReadForEdit(ArchitectureDir("mixtral")), renamed;
  Fuse(&c, *config, true, false, "mlp.experts.", "");
  for (auto& [name, t] : c) {
    const size_t at = name.find("block_sparse_moe.gate.");
    renamed[at == std::string::npos ? name : name.substr(0, at) + "mlp.gate.weight"] = t;
  }
  CheckLayout("mixtral", renamed);
}

TEST_CASE("f32 and f16 weights are rounded to what bf16 ones are") {
  EditCheckpoint c = test::ReadForEdit(ArchitectureDir("qwen2_moe"));
  Convert(&c, "F32");
  CheckLayout("qwen2_moe", c, /*exact=*/false);  // the decoder multiplies f32 panels otherwise
  c = test::ReadForEdit(ArchitectureDir("qwen2_moe"));
  Convert(&c, "F16");
  CheckLayout("qwen2_moe", c, /*exact=*/false);
}

TEST_CASE("shards with an index") {
  TempDir cache, dir;
  const EditCheckpoint c = test::ReadForEdit(ArchitectureDir("deepseek"));
  std::filesystem::copy_file(ArchitectureDir("deepseek") + "/config.json", dir / "config.json");
  EditCheckpoint shards[3];
  nlohmann::json map;
  size_t i = 0;
  for (const auto& [name, t] : c) {
    map[name] = "model-0000" + std::to_string(i % 3) + ".safetensors";
    shards[i++ % 3][name] = t;
  }
  for (int s = 0; s < 3; ++s) {
    test::WriteFile(dir / ("model-0000" + std::to_string(s) + ".safetensors"),
                    test::ToSafetensors(shards[s]));
  }
  test::WriteFile(dir / "model.safetensors.index.json",
                  nlohmann::json{{"metadata", {}}, {"weight_map", map}}.dump());
  const ReferenceCase reference = ReadReferenceCase("deepseek", "short");
  const EngineOptions options = Options(ActivationNumerics::kF32);
  ArchitectureRun original(ArchitectureDir("deepseek"), cache.path(), options, false);
  ArchitectureRun sharded(dir.path(), cache.path(), options, true);
  CHECK(SameBits(original.Logits(reference, 3), sharded.Logits(reference, 3)));
}

TEST_CASE("what does not fit the config is refused by name") {
  struct Case {
    const char* what;
    void (*edit)(EditCheckpoint&);
    const char* message;
  };
  const Case cases[] = {
      {"no experts at all",
       [](EditCheckpoint& c) {
         for (auto it = c.begin(); it != c.end();) {
           it = it->first.find(".experts.") != std::string::npos ? c.erase(it) : std::next(it);
         }
       },
       "tensor \"model.layers.0.mlp.experts.0.gate_proj.weight\" is missing, and so is the one of "
       "all "
       "experts: model.layers.0.mlp.experts.gate_up_proj or"},
      {"one expert missing",
       [](EditCheckpoint& c) { c.erase("model.layers.1.mlp.experts.5.up_proj.weight"); },
       "tensor \"model.layers.1.mlp.experts.5.up_proj.weight\" is missing"},
      {"a fused tensor of another size",
       [](EditCheckpoint& c) {
         for (int e = 0; e < 8; ++e) {
           c.erase("model.layers.0.mlp.experts." + std::to_string(e) + ".gate_proj.weight");
         }
         c["model.layers.0.mlp.experts.gate_up_proj"] = {
             "BF16", {8, 64, 63}, std::string(8 * 64 * 63 * 2, 0)};
         c["model.layers.0.mlp.experts.down_proj"] = {
             "BF16", {8, 64, 32}, std::string(8 * 64 * 32 * 2, 0)};
       },
       "its shape is [8, 64, 63]; config.json implies 8 experts, hidden size 64 and expert width "
       "32"},
      {"fp8 without scales",
       [](EditCheckpoint& c) {
         c["model.layers.0.mlp.experts.3.up_proj.weight"] = {
             "F8_E4M3", {32, 64}, std::string(32 * 64, 0)};
       },
       "its type is f8_e4m3, legal are bf16, f16, f32, and f8_e4m3 with scales in"},
      {"scales of another shape",
       [](EditCheckpoint& c) {
         const std::string name = "model.layers.0.mlp.experts.3.up_proj.weight";
         c[name] = {"F8_E4M3", {32, 64}, std::string(32 * 64, 0)};
         c[name + "_scale_inv"] = {"F32", {1, 2}, std::string(8, 0)};
       },
       "it is f32 [1, 2], legal for the scales of [32, 64] are f32, bf16, f16 and f8_e8m0 of "
       "shape [1, 1]"},
  };
  TempDir cache;
  for (const Case& k : cases) {
    INFO(k.what);
    TempDir dir;
    EditCheckpoint c = test::ReadForEdit(ArchitectureDir("qwen3_moe"));
    k.edit(c);
    std::filesystem::copy_file(ArchitectureDir("qwen3_moe") + "/config.json", dir / "config.json");
    test::WriteFile(dir / "model.safetensors", test::ToSafetensors(c));
    OpenModelOptions open;
    open.cache_dir = cache.path();
    const auto source = OpenModel(dir.path(), open);
    REQUIRE_FALSE(source.ok());
    CHECK_THAT(std::string(source.status().message()), Catch::Contains(k.message));
  }
}

}  // namespace
}  // namespace moert
