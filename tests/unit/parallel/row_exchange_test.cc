// Rows of ranks on devices, with host memory in a device's place: all of them are gathered, and
// sums come out in the ranks' order, wherever blocks end.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "parallel/token_exchange.h"
#include "support/catch.h"
#include "support/ranks.h"

namespace moert {
namespace {

using test::OnRanks;

/// The kernels of a device, in host memory.
class HostKernels final : public RowKernels {
 public:
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    if (!memory_.empty()) return absl::InternalError("allocated twice");
    memory_.assign(static_cast<size_t>(bytes) + 256, std::byte{0x7f});
    return memory_.data() + 256 - reinterpret_cast<uintptr_t>(memory_.data()) % 256;
  }
  absl::Status Pack(const MatrixView& rows, const int32_t* ids, const float* weights,
                    const RowRecord& record, std::byte* records, void*) override {
    const int64_t element = DTypeBytes(rows.dtype), k = record.top_k;
    for (int64_t t = 0; t < rows.rows; ++t) {
      std::byte* const to = records + t * record.bytes;
      Copy(to, Bytes(rows.data) + t * rows.row_stride * element, rows.cols * element);
      Copy(to + record.ids_at, ids + t * k, k * 4);
      Copy(to + record.ids_at + k * 4, weights + t * k, k * 4);
    }
    return absl::OkStatus();
  }
  absl::Status TakeRouting(const std::byte* records, const RowRecord& record, int64_t rows,
                           int32_t* ids, float* weights, void*) override {
    for (int64_t t = 0; t < rows; ++t) {
      const std::byte* const from = records + t * record.bytes + record.ids_at;
      Copy(ids + t * record.top_k, from, record.top_k * 4);
      Copy(weights + t * record.top_k, from + record.top_k * 4, record.top_k * 4);
    }
    return absl::OkStatus();
  }
  absl::Status Add(const RowParts& parts, const MutableMatrixView& out, void*) override {
    for (int64_t t = 0; t < out.rows; ++t) {
      for (int64_t c = 0; c < out.cols; ++c) {
        float sum = 0;
        for (int r = 0; r < parts.ranks; ++r) {
          sum += At(parts.data, parts.dtype, (r * out.rows + t) * out.cols + c);
        }
        const int64_t at = t * out.row_stride + c;
        if (out.dtype == DType::kBF16) {
          static_cast<uint16_t*>(out.data)[at] = F32ToBf16(sum);
        } else {
          static_cast<float*>(out.data)[at] = sum;
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static const std::byte* Bytes(const void* at) { return static_cast<const std::byte*>(at); }
  static void Copy(void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  static float At(const void* data, DType dtype, int64_t i) {
    return dtype == DType::kBF16 ? Bf16ToF32(static_cast<const uint16_t*>(data)[i])
                                 : static_cast<const float*>(data)[i];
  }

  std::vector<std::byte> memory_;
};

MoeModelSpec Model(int64_t hidden, int top_k) {
  MoeModelSpec model;
  model.layers.resize(1);
  model.layers[0].hidden = hidden;
  model.layers[0].routing.top_k = top_k;
  return model;
}

/// Each rank's call, in a group of threads.
template <typename Call>
void OnGroup(int size, int64_t hidden, int top_k, int64_t max_rows, const Call& call) {
  auto group = MakeThreadCollectives(size, int64_t{20} * 1'000'000'000);
  REQUIRE_OK(group.status());
  const auto statuses = OnRanks(size, [&](int r) {
    Collectives* const mine = (*group)[static_cast<size_t>(r)].get();
    RowExchange exchange(Model(hidden, top_k), std::make_unique<HostKernels>(), mine, max_rows);
    // Memory is taken once.
    absl::Status status = call(r, &exchange);
    if (status.ok()) status = call(r, &exchange);
    return status;
  });
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
}

absl::Status Same(bool same, const char* what) {
  return same ? absl::OkStatus() : absl::InternalError(what);
}

TEST_CASE("rows and their routing reach every rank, in the order of the ranks") {
  constexpr int64_t kRows = 3, kHidden = 20;
  constexpr int kTopK = 3;
  for (const int size : {1, 2, 5}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      CAPTURE(size, static_cast<int>(dtype));
      OnGroup(size, kHidden, kTopK, kRows * size, [&](int r, RowExchange* exchange) {
        const int64_t stride = kHidden + 4;
        const auto value = [](int rank, int64_t t, int64_t c) {
          return static_cast<float>(rank * 1000 + t * 100 + c) / 8;
        };
        std::vector<float> floats(kRows * stride, -1);
        std::vector<uint16_t> halves(kRows * stride);
        std::vector<int32_t> ids;
        std::vector<float> weights;
        for (int64_t t = 0; t < kRows; ++t) {
          for (int64_t c = 0; c < kHidden; ++c) floats[t * stride + c] = value(r, t, c);
          for (int64_t c = 0; c < kHidden; ++c) {
            halves[t * stride + c] = F32ToBf16(value(r, t, c));
          }
          for (int j = 0; j < kTopK; ++j) {
            ids.push_back(r * 100 + static_cast<int>(t) * 10 + j - 1);
            weights.push_back(static_cast<float>(ids.back()) / 2);
          }
        }
        const bool wide = dtype == DType::kF32;
        const MatrixView hidden{wide ? static_cast<const void*>(floats.data()) : halves.data(),
                                dtype, kRows, kHidden, stride};
        RoutedInput routing;
        routing.ids = ids;
        routing.weights = weights;
        MatrixView all;
        RoutedInput all_routing;
        absl::Status status = exchange->Gather(hidden, routing, nullptr, &all, &all_routing);
        if (!status.ok()) return status;
        status.Update(Same(all.rows == kRows * size && all.cols == kHidden && all.dtype == dtype &&
                               all_routing.place == Place::kDevice,
                           "another shape"));
        // Kernels read these 16 bytes at a time.
        status.Update(Same(all.row_stride * DTypeBytes(dtype) % 16 == 0, "not aligned"));
        for (int64_t t = 0; t < all.rows; ++t) {
          const int from = static_cast<int>(t / kRows);
          for (int64_t c = 0; c < kHidden; ++c) {
            const int64_t at = t * all.row_stride + c;
            const float got = wide ? static_cast<const float*>(all.data)[at]
                                   : Bf16ToF32(static_cast<const uint16_t*>(all.data)[at]);
            const float sent = value(from, t % kRows, c);
            status.Update(Same(got == (wide ? sent : Bf16ToF32(F32ToBf16(sent))), "a row"));
          }
          for (int j = 0; j < kTopK; ++j) {
            const auto at = static_cast<size_t>(t * kTopK + j);
            const int id = from * 100 + static_cast<int>(t % kRows) * 10 + j - 1;
            status.Update(Same(all_routing.ids[at] == id, "an id"));
            status.Update(Same(all_routing.weights[at] == static_cast<float>(id) / 2, "a weight"));
          }
        }
        return status;
      });
    }
  }
}

/// Rank r's part of a value, whole and rounded as it travels.
float PartAt(int rank, int64_t i, bool narrow) {
  std::minstd_rand random(static_cast<uint32_t>(1 + rank * 100003 + i));
  random.discard(3);
  const float v = static_cast<float>(random() % 2000) / 1000 - 1;
  return narrow ? Bf16ToF32(F32ToBf16(v)) : v;
}

absl::Status FillPart(RowExchange* exchange, int rank, int64_t rows, int64_t cols, bool narrow,
                      MutableMatrixView* part) {
  auto made = exchange->Part(rows, cols, narrow);
  if (!made.ok()) return made.status();
  *part = *made;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float v = PartAt(rank, i, false);
    if (narrow) {
      static_cast<uint16_t*>(part->data)[i] = F32ToBf16(v);
    } else {
      static_cast<float*>(part->data)[i] = v;
    }
  }
  return absl::OkStatus();
}

float SumAt(int ranks, int64_t i, bool narrow) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += PartAt(r, i, narrow);
  return sum;
}

TEST_CASE("each rank gets the sums of its own rows") {
  constexpr int64_t kRows = 4, kHidden = 10;
  for (const int size : {1, 2, 3}) {
    for (const bool narrow : {false, true}) {
      CAPTURE(size, narrow);
      OnGroup(size, kHidden, 2, kRows * size, [&](int r, RowExchange* exchange) {
        MutableMatrixView part;
        absl::Status status = FillPart(exchange, r, kRows * size, kHidden, narrow, &part);
        const int64_t stride = kHidden + 3;
        std::vector<float> out(kRows * stride, 9);
        status.Update(
            exchange->AddOwn(part, nullptr, {out.data(), DType::kF32, kRows, kHidden, stride}));
        for (int64_t t = 0; t < kRows; ++t) {
          for (int64_t c = 0; c < stride; ++c) {
            const float expected =
                c < kHidden ? SumAt(size, (r * kRows + t) * kHidden + c, narrow) : 9;
            status.Update(Same(out[t * stride + c] == expected, "a sum"));
          }
        }
        return status;
      });
    }
  }
}

TEST_CASE("every rank gets the sums of all rows, whether or not they fill the blocks") {
  constexpr int64_t kHidden = 8;
  for (const int size : {1, 2, 3, 4}) {
    for (const int64_t rows : {1, 2, 5, 8, 12}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        CAPTURE(size, rows, static_cast<int>(dtype));
        OnGroup(size, kHidden, 2, 12, [&](int r, RowExchange* exchange) {
          MutableMatrixView part;
          absl::Status status = FillPart(exchange, r, rows, kHidden, /*narrow=*/true, &part);
          std::vector<float> floats(rows * kHidden);
          std::vector<uint16_t> halves(rows * kHidden);
          const bool wide = dtype == DType::kF32;
          void* const out = wide ? static_cast<void*>(floats.data()) : halves.data();
          status.Update(exchange->AddAll(part, nullptr, {out, dtype, rows, kHidden, kHidden}));
          for (int64_t i = 0; i < rows * kHidden; ++i) {
            const float sum = Bf16ToF32(F32ToBf16(SumAt(size, i, true)));
            status.Update(Same((wide ? floats[i] : Bf16ToF32(halves[i])) == sum, "a sum"));
          }
          return status;
        });
      }
    }
  }
}

}  // namespace
}  // namespace moert
