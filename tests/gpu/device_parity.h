// A whole model on a device against the reference library's logits.
#ifndef MOERT_TESTS_GPU_DEVICE_PARITY_H_
#define MOERT_TESTS_GPU_DEVICE_PARITY_H_

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "device_model.h"
#include "tests/support/temp_dir.h"

namespace moert::test {

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The differences that a fixture may have: of the position in the middle, and of that which `most`
/// of all positions stay below. A position whose routing decision was tipped by rounding differs by
/// more.
struct Tolerance {
  float median = 0.02f, high = 0.03f, most = 0.9f;
  int64_t alone = 0;  // the sequence of batch 1
};

/// Prefill and decode, batch 1 and 3, everything resident and the smallest budget there is; eager,
/// and as CUDA graphs.
inline void CheckParity(const std::string& name, const Tolerance& tolerance = {}) {
  TempDir cache;
  for (const char* which : {"short", "long"}) {
    const ReferenceCase reference = ReadReferenceCase(name, which);
    std::vector<float> resident;
    for (const bool minimal : {false, true}) {
      DeviceModelOptions options;
      options.minimal = minimal;
      DeviceModel model(ArchitectureDir(name), cache.path(), options);
      for (const int64_t batch : {3, 1}) {
        INFO(name << " " << which << (minimal ? " minimal" : " resident") << " batch " << batch);
        const int64_t first = batch == 1 ? tolerance.alone : 0;
        const std::vector<float> logits = model.Logits(reference, batch, first);
        const size_t before = first * reference.tokens[0].size() * model.config.vocab_size;
        const std::vector<float> d = SortedDifferences(
            logits, absl::MakeConstSpan(reference.logits).subspan(before), model.config.vocab_size);
        const float high = d[static_cast<size_t>(static_cast<float>(d.size()) * tolerance.most)];
        std::printf("%s %s %s batch %d: median %.4f, %.0f%% %.4f, largest %.4f\n", name.c_str(),
                    which, minimal ? "minimal" : "resident", static_cast<int>(batch),
                    d[d.size() / 2], tolerance.most * 100, high, d.back());
        CHECK(d[d.size() / 2] < tolerance.median);
        CHECK(high < tolerance.high);
        if (batch == 1) continue;
        if (minimal) {
          CHECK(SameBits(logits, resident));
          CHECK(model.engine->stats().evictions > 0);
        } else {
          resident = logits;
        }
      }
    }
    // The same bits from graphs: strategy resident.
    DeviceModelOptions options;
    options.strategy = "resident";
    DeviceModel graphs(ArchitectureDir(name), cache.path(), options);
    CHECK(SameBits(graphs.Logits(reference, 3), resident));
    const int64_t decode = static_cast<int64_t>(reference.tokens[0].size()) - reference.prefill;
    CHECK(graphs.decoder->graphs());
    CHECK(graphs.decoder->replays() == std::max<int64_t>(0, decode - 2));
  }
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_DEVICE_PARITY_H_
