// A checkpoint in memory, to be written in another layout than the one it was read in.
#ifndef MOERT_TESTS_SUPPORT_EDIT_CHECKPOINT_H_
#define MOERT_TESTS_SUPPORT_EDIT_CHECKPOINT_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "moert/offline/checkpoint.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert::test {

struct EditTensor {
  std::string dtype;  // as in the header: "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};

using EditCheckpoint = std::map<std::string, EditTensor>;

inline EditCheckpoint ReadForEdit(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(dir);
  REQUIRE_OK(checkpoint.status());
  EditCheckpoint out;
  for (const TensorInfo& t : (*checkpoint)->tensors()) {
    EditTensor e{absl::AsciiStrToUpper(DTypeName(t.dtype)),
                 {t.shape.begin(), t.shape.end()},
                 std::string(static_cast<size_t>(t.bytes), '\0')};
    REQUIRE_OK((*checkpoint)
                   ->ReadBytes(t, 0,
                               absl::MakeSpan(reinterpret_cast<std::byte*>(e.bytes.data()),
                                              e.bytes.size())));
    out.emplace(std::string(t.name), std::move(e));
  }
  return out;
}

inline std::string ToSafetensors(const EditCheckpoint& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {{"dtype", t.dtype},
                    {"shape", t.shape},
                    {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  return Safetensors(header.dump(), data);
}

/// Swaps the last two dimensions of a tensor of 2-byte elements.
inline void SwapLast(EditTensor* t) {
  const size_t rank = t->shape.size();
  const int64_t rows = t->shape[rank - 2], cols = t->shape[rank - 1];
  const std::string in = t->bytes;
  const int64_t matrices = static_cast<int64_t>(in.size()) / (2 * rows * cols);
  for (int64_t m = 0; m < matrices; ++m) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        std::memcpy(&t->bytes[2 * ((m * cols + c) * rows + r)],
                    &in[2 * ((m * rows + r) * cols + c)], 2);
      }
    }
  }
  std::swap(t->shape[rank - 2], t->shape[rank - 1]);
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_EDIT_CHECKPOINT_H_
