// MixedGroupGemm: every ready expert of a layer in one grouped problem, whatever their schemes.
//
// For expert problem p with n tokens: h = act(gate x, up x), out = down h, for its n rows of x.
// Each product gets its bias if the record has one. Two fused jobs a call: gate+up of all problems,
// then down of all (MxMoE Sec. 5; design "multiply"). The arithmetic of one (token, expert) pair
// depends on the expert's record and the token's row only, never on which other problems, threads
// or waves run beside it. Results are bit-identical however a layer is cut into calls.
#ifndef MOERT_MIXED_GROUP_GEMM_H_
#define MOERT_MIXED_GROUP_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/scheme.h"

namespace moert {

class ThreadPool;

/// One expert and the tokens that chose it. Borrowed for the call.
struct ExpertProblem {
  const std::byte* record = nullptr;  // 64-byte aligned
  const RecordLayout* layout = nullptr;
  ExpertActivation activation = {};
  absl::Span<const int32_t> tokens = {};    // rows of x
  absl::Span<const int32_t> out_rows = {};  // rows of out, as many, each written once, no overlap
};

/// CPU implementation. Not thread-safe: one call at a time per object.
class MixedGroupGemm {
 public:
  /// `kernels`: "auto" or a name of KernelNames(). `pool` is borrowed.
  static absl::StatusOr<std::unique_ptr<MixedGroupGemm>> Create(ThreadPool* pool,
                                                                absl::string_view kernels,
                                                                ActivationNumerics numerics);
  virtual ~MixedGroupGemm() = default;

  /// x: fp32 [rows, hidden] (stride hidden). out: fp32 [*, hidden] (stride hidden). Both aligned to
  /// 64 bytes. All problems share hidden; schemes may differ between and within them.
  virtual absl::Status Run(const float* x, int64_t rows, int64_t hidden,
                           absl::Span<const ExpertProblem> problems, float* out) = 0;

  /// Bytes of scratch a Run needs for `rows` tokens in x, `slots` (token, expert) pairs, the widest
  /// expert, and experts in any of `formats`; such a Run never holds more.
  virtual int64_t WorkspaceBytes(int64_t rows, int64_t slots, int64_t hidden,
                                 int64_t max_intermediate,
                                 absl::Span<const ExpertFormat> formats) const = 0;
  virtual absl::string_view kernels() const = 0;  // name of the chosen kernel set

  /// Kernel sets this CPU can run, best first; "reference" is always last.
  static std::vector<std::string> KernelNames();
};

}  // namespace moert

#endif  // MOERT_MIXED_GROUP_GEMM_H_
