// RowProduct beside products in double precision, and beside ggml's own.
//   hosts.row_product    needs the libraries that get_llama_cpp.sh has built
#include "row_product.h"

#include <ggml-cpu.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "support/catch.h"

namespace moert_ggml {
namespace {

constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,   GGML_TYPE_Q5_0,  GGML_TYPE_Q5_1,
                                GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4, GGML_TYPE_Q3_K,
                                GGML_TYPE_Q4_K, GGML_TYPE_IQ4_XS, GGML_TYPE_Q5_K,  GGML_TYPE_Q6_K};
constexpr int kRows = 48;

std::vector<float> Normal(size_t count, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Rows of random weights in a format, with their exact values.
struct Weights {
  Weights(ggml_type type, int64_t columns, float deviation)
      : bytes(ggml_row_size(type, columns)), data(bytes * kRows), exact(columns * kRows) {
    const std::vector<float> values = Normal(exact.size(), deviation, 1);
    const std::vector<float> even(static_cast<size_t>(columns), 1.0f);
    ggml_quantize_chunk(type, values.data(), data.data(), 0, kRows, columns, even.data());
    ggml_get_type_traits(type)->to_float(data.data(), exact.data(), columns * kRows);
  }
  size_t bytes;
  std::vector<char> data;
  std::vector<float> exact;
};

// Errors over the size of the results: of ours and of ggml's.
struct Errors {
  double ours = 0, ggml = 0;
};

Errors ErrorsOf(ggml_type type, int64_t columns, int inputs, float deviation) {
  const RowProduct* product = RowProduct::Find(type, columns);
  REQUIRE(product != nullptr);
  ggml_cpu_init();  // tables of halves
  const Weights weights(type, columns, deviation);
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(type);
  std::vector<float> x = Normal(static_cast<size_t>(columns * inputs), 1, 2);
  std::fill_n(x.begin(), 32, 0.0f);  // a group without a scale
  std::vector<std::vector<char>> packed(static_cast<size_t>(inputs));
  std::vector<const void*> all;
  for (int i = 0; i < inputs; ++i) {
    auto& one = packed[static_cast<size_t>(i)];
    one.resize(product->packed_bytes(columns));
    product->pack(x.data() + i * columns, one.data(), columns);
    all.push_back(one.data());
  }
  constexpr int64_t kStride = kRows + 5;
  std::vector<float> out(static_cast<size_t>(kStride * inputs), NAN);
  product->multiply({weights.data.data(), weights.bytes, kRows, columns}, all.data(), inputs,
                    out.data(), kStride);
  std::vector<char> operand(ggml_row_size(traits->vec_dot_type, columns));
  double size = 0, ours = 0, ggml = 0;
  for (int i = 0; i < inputs; ++i) {
    ggml_get_type_traits_cpu(traits->vec_dot_type)
        ->from_float(x.data() + i * columns, operand.data(), columns);
    for (int r = 0; r < kRows; ++r) {
      double wanted = 0;
      for (int64_t c = 0; c < columns; ++c) {
        wanted += double{weights.exact[static_cast<size_t>(r * columns + c)]} *
                  x[static_cast<size_t>(i * columns + c)];
      }
      float theirs = 0;
      traits->vec_dot(static_cast<int>(columns), &theirs, 0,
                      weights.data.data() + static_cast<size_t>(r) * weights.bytes, 0,
                      operand.data(), 0, 1);
      size += wanted * wanted;
      ours += std::pow(out[static_cast<size_t>(i * kStride + r)] - wanted, 2);
      ggml += std::pow(theirs - wanted, 2);
    }
    for (int64_t r = kRows; r < kStride; ++r) {  // nothing is written behind a row's results
      CHECK(std::isnan(out[static_cast<size_t>(i * kStride + r)]));
    }
  }
  REQUIRE(size > 0);
  return {std::sqrt(ours / size), std::sqrt(ggml / size)};
}

bool Missing() {
  if (RowProduct::Find(GGML_TYPE_Q4_0, 64) != nullptr) return false;
  WARN("skipped: this processor has no AVX-512 VNNI");
  return true;
}

TEST_CASE("no format is further from exact products than ggml's own are") {
  if (Missing()) return;
  for (const ggml_type type : kTypes) {
    for (const int64_t columns : {2048, 768, 2880, 512, 256, 64}) {
      if (columns % ggml_blck_size(type) != 0) continue;
      for (int inputs = 1; inputs <= RowProduct::kMostInputs; ++inputs) {
        CAPTURE(ggml_type_name(type), columns, inputs);
        const Errors errors = ErrorsOf(type, columns, inputs, 0.06f);
        CHECK(errors.ours < 1.1 * errors.ggml + 2e-4);
      }
    }
  }
}

TEST_CASE("small weights keep their scales") {
  if (Missing()) return;
  for (const ggml_type type : {GGML_TYPE_MXFP4, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K}) {
    CAPTURE(ggml_type_name(type));
    const float deviation = type == GGML_TYPE_MXFP4 ? 1e-36f : 1e-3f;
    CHECK(ErrorsOf(type, 512, 1, deviation).ours < 2e-2);
  }
}

TEST_CASE("rows that are no multiple of 64 columns, and other formats, are ggml's") {
  CHECK(RowProduct::Find(GGML_TYPE_Q4_0, 96) == nullptr);
  CHECK(RowProduct::Find(GGML_TYPE_Q2_K, 256) == nullptr);
  CHECK(RowProduct::Find(GGML_TYPE_F16, 256) == nullptr);
}

}  // namespace
}  // namespace moert_ggml
