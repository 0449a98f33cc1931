// The MoE blocks of a model through the C ABI, for the example decoder.
#ifndef MOERT_TESTS_SUPPORT_C_RUNNER_H_
#define MOERT_TESTS_SUPPORT_C_RUNNER_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "host/moe_runner.h"
#include "moert/c/layer.h"
#include "support/catch.h"

namespace moert::test {

/// `error` is where the call left its error: read behind it.
inline absl::Status FromC(moert_code code, moert_error** error) {
  if (code == MOERT_OK) return absl::OkStatus();
  const absl::Status status(static_cast<absl::StatusCode>(-code), moert_error_message(*error));
  moert_error_destroy(*error);
  return status;
}

/// Owns a CPU engine over `source`, which it destroys.
class CRunner final : public host::MoeRunner {
 public:
  CRunner(moert_source* source, int64_t max_rows) : max_rows_(max_rows) {
    moert_engine_options options;
    moert_engine_options_init(&options, sizeof(options));
    options.numerics = MOERT_NUMERICS_F32;
    options.threads = 1;
    options.max_tokens_per_forward = max_rows;
    moert_error* error = nullptr;
    REQUIRE_OK(FromC(moert_engine_create(source, &options, &engine_, &error), &error));
    moert_source_destroy(source);
  }
  ~CRunner() override { moert_engine_destroy(engine_); }
  CRunner(const CRunner&) = delete;
  CRunner& operator=(const CRunner&) = delete;

  absl::Status BeginStep(host::StepPhase phase, const host::StepRows& rows) override {
    moert_step_options options;
    moert_step_options_init(&options, sizeof(options));
    options.rows = rows.count();
    options.phase = phase == host::StepPhase::kPrefill ? MOERT_PREFILL : MOERT_DECODE;
    options.request_ids = rows.request_ids.data();
    options.token_ids = rows.tokens.data();
    moert_error* error = nullptr;
    return FromC(moert_step_begin(engine_, &options, &step_, &error), &error);
  }

  absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) override {
    return Call(moe_layer, x, rows, nullptr, out);
  }

  absl::Status ForwardRouted(int moe_layer, const float* x, int64_t rows,
                             const host::MoeRouting& of, float* out) override {
    const auto tensor = [rows](const auto& values, moert_dtype type, moert_tensor* to) {
      const auto columns = static_cast<int64_t>(values.size()) / rows;
      auto* data = const_cast<std::remove_const_t<std::remove_pointer_t<decltype(values.data())>>*>(
          values.data());
      moert_tensor_init(to, data, rows, columns, type);
    };
    moert_routing routing;
    moert_routing_init(&routing, sizeof(routing));
    tensor(of.ids, MOERT_I32, &routing.ids);
    tensor(of.weights, MOERT_F32, &routing.weights);
    tensor(of.scores, MOERT_F32, &routing.scores);
    return Call(moe_layer, x, rows, &routing, out);
  }

  absl::Status EndStep() override {
    moert_error* error = nullptr;
    return FromC(moert_step_end(step_, &error), &error);
  }

  int64_t max_rows() const override { return max_rows_; }

 private:
  absl::Status Call(int moe_layer, const float* x, int64_t rows, const moert_routing* routing,
                    float* out) {
    moert_layer_spec spec;
    moert_layer_spec_init(&spec, sizeof(spec));
    moert_error* error = nullptr;
    const absl::Status known = FromC(moert_engine_layer(engine_, moe_layer, &spec, &error), &error);
    if (!known.ok()) return known;
    moert_tensor in, result;
    moert_tensor_init(&in, const_cast<float*>(x), rows, spec.hidden, MOERT_F32);
    moert_tensor_init(&result, out, rows, spec.hidden, MOERT_F32);
    error = nullptr;
    return FromC(moert_layer_forward(step_, moe_layer, &in, routing, &result, &error), &error);
  }

  const int64_t max_rows_;
  moert_engine* engine_ = nullptr;
  moert_step* step_ = nullptr;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_C_RUNNER_H_
