// The plug-in's product on the CPU beside ggml's own: every format, and every way that llama.cpp
// writes a layer of experts.
//   hosts.pair_program    needs the libraries that get_llama_cpp.sh has built
#include "pair_program.h"

#include <ggml-backend-impl.h>
#include <ggml-impl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "buffers.h"
#include "layer_call.h"
#include "row_product.h"
#include "support/catch.h"

namespace moert_ggml {

/// All buffers of this test are.
bool IsOurs(const ggml_backend_buffer* buffer) { return buffer != nullptr; }

namespace {

constexpr int kHidden = 256, kInner = 256, kExperts = 4, kTopK = 2, kTokens = 3;

ggml_backend_dev_t Cpu() {
  static const ggml_backend_dev_t cpu = [] {
    ggml_backend_load(GGML_CPU_LIBRARY);
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }();
  REQUIRE(cpu != nullptr);
  return cpu;
}

CpuKernels Kernels() {
  CpuKernels kernels;
  REQUIRE(kernels.Find(Cpu()));
  return kernels;
}

/// A layer of experts as a graph, computed by ggml.
class LayerGraph {
 public:
  explicit LayerGraph(ggml_type type, uint64_t seed = 1) : type_(type), random_(seed) {
    context_ = ggml_init({size_t{1} << 26, nullptr, /*no_alloc=*/false});
    backend_ = ggml_backend_dev_init(Cpu(), nullptr);
    buffer_ = ggml_backend_cpu_buffer_from_ptr(ggml_get_mem_buffer(context_),
                                               ggml_get_mem_size(context_));
    graph_ = ggml_new_graph(context_);
    x_ = Random(ggml_new_tensor_3d(context_, GGML_TYPE_F32, kHidden, 1, kTokens));
    ids_ = ggml_new_tensor_2d(context_, GGML_TYPE_I32, kTopK, kTokens);
    for (int t = 0; t < kTokens; ++t) {
      std::vector<int32_t> all(kExperts);
      for (int e = 0; e < kExperts; ++e) all[static_cast<size_t>(e)] = e;
      std::shuffle(all.begin(), all.end(), random_);
      std::copy_n(all.begin(), kTopK, static_cast<int32_t*>(ids_->data) + t * kTopK);
    }
  }
  ~LayerGraph() {
    ggml_backend_buffer_free(buffer_);
    ggml_backend_free(backend_);
    ggml_free(context_);
  }
  LayerGraph(const LayerGraph&) = delete;
  LayerGraph& operator=(const LayerGraph&) = delete;

  ggml_context* context() { return context_; }
  ggml_tensor* x() { return x_; }

  ggml_tensor* Product(ggml_tensor* input, int64_t rows) {
    ggml_tensor* weights = ggml_new_tensor_3d(context_, type_, input->ne[0], rows, kExperts);
    std::vector<float> values(static_cast<size_t>(ggml_nelements(weights)));
    std::normal_distribution<float> normal(0, 0.06f);
    for (float& value : values) value = normal(random_);
    const std::vector<float> even(static_cast<size_t>(input->ne[0]), 1.0f);
    ggml_quantize_chunk(type_, values.data(), weights->data, 0, rows * kExperts, input->ne[0],
                        even.data());
    weights->buffer = buffer_;
    parts_.push_back(std::make_unique<ExpertTensor>());
    *parts_.back() = {nullptr, 0, weights, 0, static_cast<int>(parts_.size()) - 1};
    weights->extra = parts_.back().get();
    return ggml_mul_mat_id(context_, weights, input, ids_);
  }
  ggml_tensor* Bias(ggml_tensor* rows) {
    ggml_tensor* bias = Random(ggml_new_tensor_2d(context_, GGML_TYPE_F32, rows->ne[0], kExperts));
    bias->buffer = buffer_;
    return ggml_add_id(context_, rows, bias, ids_);
  }
  /// As llama.cpp multiplies rows by a factor of their expert.
  ggml_tensor* Scaled(ggml_tensor* rows) {
    ggml_tensor* factors = Random(ggml_new_tensor_1d(context_, GGML_TYPE_F32, kExperts));
    factors->buffer = buffer_;
    ggml_tensor* all = ggml_reshape_3d(context_, factors, 1, kExperts, 1);
    all = ggml_repeat_4d(context_, all, 1, kExperts, kTokens, 1);
    return ggml_mul(context_, rows, ggml_get_rows(context_, all, ids_));
  }
  ggml_tensor* Columns(ggml_tensor* rows, int64_t first, int64_t width) {
    return ggml_view_3d(context_, rows, width, rows->ne[1], rows->ne[2], rows->nb[1], rows->nb[2],
                        static_cast<size_t>(first) * sizeof(float));
  }

  void Compute(ggml_tensor* out) {
    ggml_build_forward_expand(graph_, out);
    REQUIRE(ggml_backend_graph_compute(backend_, graph_) == GGML_STATUS_SUCCESS);
    out_ = out;
  }
  LayerCall Call() {
    int first = 0;
    while (ggml_graph_node(graph_, first)->op != GGML_OP_MUL_MAT_ID) ++first;
    return LayerCall(graph_, first);
  }

  /// The program's result for all pairs, less ggml's, over the size of ggml's.
  double Error(const PairProgram& program) const {
    std::vector<moert_cpu_expert> experts;
    std::vector<int32_t> row_of, pair_of;
    for (int64_t e = kExperts - 1; e >= 0; --e) {
      moert_cpu_expert expert = {{}, 0, e};
      for (size_t p = 0; p < parts_.size(); ++p) {
        const ggml_tensor* all = parts_[p]->tensor;
        expert.part[p] = static_cast<const char*>(all->data) + static_cast<size_t>(e) * all->nb[2];
      }
      for (int32_t i = 0; i < kTopK * kTokens; ++i) {
        if (static_cast<const int32_t*>(ids_->data)[i] != e) continue;
        row_of.push_back(i / kTopK);
        pair_of.push_back(i);
        ++expert.pairs;
      }
      if (expert.pairs > 0) experts.push_back(expert);
    }
    std::vector<float> out(row_of.size() * static_cast<size_t>(out_->ne[0]), NAN);
    moert_cpu_job job = {};
    job.hidden = kHidden;
    job.rows = kTokens;
    job.x = static_cast<const float*>(x_->data);
    job.num_experts = static_cast<int64_t>(experts.size());
    job.experts = experts.data();
    job.pairs = static_cast<int64_t>(row_of.size());
    job.row_of = row_of.data();
    job.out = out.data();
    job.threads = 3;
    job.run = [](void*, int64_t count, void (*task)(void*, int64_t, int32_t), void* arg) {
      std::vector<std::thread> threads;
      for (int32_t t = 0; t < 3; ++t) {
        threads.emplace_back([=] {
          for (int64_t i = t; i < count; i += 3) task(arg, i, t);
        });
      }
      for (std::thread& thread : threads) thread.join();
    };
    PairProgram::Memory memory;
    program.Run(job, &memory);
    program.Run(job, &memory);  // over memory that is in use
    double error = 0, size = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto width = static_cast<size_t>(out_->ne[0]);
      const size_t pair = static_cast<size_t>(pair_of[i / width]);
      const float wanted = static_cast<const float*>(out_->data)[pair * width + i % width];
      error += (out[i] - wanted) * static_cast<double>(out[i] - wanted);
      size += wanted * static_cast<double>(wanted);
    }
    REQUIRE(size > 0);
    return std::sqrt(error / size);
  }

 private:
  ggml_tensor* Random(ggml_tensor* tensor) {
    std::normal_distribution<float> normal;
    auto* values = static_cast<float*>(tensor->data);
    for (int64_t i = 0; i < ggml_nelements(tensor); ++i) values[i] = normal(random_);
    return tensor;
  }

  const ggml_type type_;
  std::mt19937 random_;
  ggml_context* context_;
  ggml_backend_t backend_;
  ggml_backend_buffer_t buffer_;
  ggml_cgraph* graph_;
  ggml_tensor *x_, *ids_, *out_ = nullptr;
  std::vector<std::unique_ptr<ExpertTensor>> parts_;
};

/// Element-wise functions are rounded otherwise, and codes of the next product's input with them.
constexpr double kRounding = 2e-3;
/// RowProduct rounds inputs otherwise than ggml does (row_product_test.cc).
constexpr double kOtherCodes = 3e-2;
constexpr double kExact = 1e-5;
/// ggml looks GELU up in tables of halves.
constexpr double kHalves = 1e-3;

TEST_CASE("every format has ggml's results") {
  const CpuKernels kernels = Kernels();
  int formats = 0;
  for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
    const auto type = static_cast<ggml_type>(t);
    const ggml_type_traits_cpu* traits = kernels.Of(type);
    if (traits->vec_dot == nullptr || ggml_get_type_traits(type)->blck_size == 0) continue;
    if (type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K) continue;  // of activations alone
    CAPTURE(ggml_type_name(type));
    LayerGraph layer(type);
    ggml_tensor* up = layer.Product(layer.x(), kInner);
    ggml_tensor* gate = layer.Product(layer.x(), kInner);
    layer.Compute(layer.Product(ggml_swiglu_split(layer.context(), gate, up), kHidden));
    const auto program = PairProgram::Make(layer.Call(), kernels);
    REQUIRE(program != nullptr);
    const bool own = RowProduct::Find(type, kHidden) != nullptr;
    CHECK(layer.Error(*program) < (own ? kOtherCodes : kRounding));
    ++formats;
  }
  CHECK(formats >= 24);
}

using MakeInner = std::function<ggml_tensor*(LayerGraph&)>;

double ErrorOf(const MakeInner& inner) {
  LayerGraph layer(GGML_TYPE_F32);
  layer.Compute(layer.Product(inner(layer), kHidden));
  const auto program = PairProgram::Make(layer.Call(), Kernels());
  REQUIRE(program != nullptr);
  return layer.Error(*program);
}

TEST_CASE("every gate, and products that hold gate and up in one, or have biases") {
  for (int op = 0; op < GGML_GLU_OP_COUNT; ++op) {
    CAPTURE(op);
    const auto glu = static_cast<ggml_glu_op>(op);
    const bool table = glu == GGML_GLU_OP_GEGLU || glu == GGML_GLU_OP_GEGLU_QUICK;
    const double most = table ? kHalves : kExact;
    const bool limited = glu == GGML_GLU_OP_SWIGLU_OAI || glu == GGML_GLU_OP_SWIGLU_CLAMP;
    const auto split = [&](LayerGraph& l, bool biased) {
      ggml_tensor* up = l.Product(l.x(), kInner);
      if (biased) up = l.Bias(up);
      ggml_tensor* gate = l.Product(l.x(), kInner);
      if (biased) gate = l.Bias(gate);
      if (glu == GGML_GLU_OP_SWIGLU_OAI) {
        return ggml_swiglu_oai(l.context(), gate, up, 1.702f, 0.7f);
      }
      ggml_tensor* made = ggml_glu_split(l.context(), gate, up, glu);
      if (limited) ggml_set_op_params_f32(made, 3, 0.7f);
      return made;
    };
    CHECK(ErrorOf([&](LayerGraph& l) { return split(l, false); }) < most);
    CHECK(ErrorOf([&](LayerGraph& l) { return split(l, true); }) < most);
    if (limited) continue;
    for (const bool swapped : {false, true}) {
      CHECK(ErrorOf([&](LayerGraph& l) {
              return ggml_glu(l.context(), l.Product(l.x(), 2 * kInner), glu, swapped);
            }) < most);
    }
  }
  CHECK(ErrorOf([](LayerGraph& l) {
          ggml_tensor* both = l.Bias(l.Product(l.x(), 2 * kInner));
          return ggml_swiglu_split(l.context(), l.Columns(both, 0, kInner),
                                   l.Columns(both, kInner, kInner));
        }) < kExact);
}

TEST_CASE("experts without a gate, clamps and scales") {
  for (const ggml_unary_op op :
       {GGML_UNARY_OP_SILU, GGML_UNARY_OP_GELU, GGML_UNARY_OP_GELU_ERF, GGML_UNARY_OP_GELU_QUICK,
        GGML_UNARY_OP_RELU, GGML_UNARY_OP_SIGMOID, GGML_UNARY_OP_TANH}) {
    CAPTURE(op);
    CHECK(ErrorOf([&](LayerGraph& l) {
            return ggml_unary(l.context(), l.Product(l.x(), kInner), op);
          }) < (op == GGML_UNARY_OP_GELU || op == GGML_UNARY_OP_GELU_QUICK ? kHalves : kExact));
  }
  CHECK(ErrorOf([](LayerGraph& l) {
          return ggml_sqr(l.context(), ggml_relu(l.context(), l.Product(l.x(), kInner)));
        }) < kExact);
  CHECK(ErrorOf([](LayerGraph& l) {
          ggml_tensor* up = ggml_clamp(l.context(), l.Product(l.x(), kInner), -0.5f, 0.5f);
          ggml_tensor* gate = ggml_scale_bias(l.context(), l.Product(l.x(), kInner), 0.5f, 0.25f);
          return ggml_mul(l.context(), ggml_silu(l.context(), gate),
                          ggml_add(l.context(), up, gate));
        }) < kExact);
  CHECK(ErrorOf([](LayerGraph& l) {
          ggml_tensor* up = l.Bias(l.Scaled(l.Product(l.x(), kInner)));
          ggml_tensor* gate = l.Scaled(l.Product(l.x(), kInner));
          return ggml_swiglu_split(l.context(), gate, up);
        }) < kExact);
}

TEST_CASE("a layer with a node that is not known here has no program") {
  LayerGraph layer(GGML_TYPE_F32);
  ggml_tensor* inner = ggml_elu(layer.context(), layer.Product(layer.x(), kInner));
  layer.Compute(layer.Product(inner, kHidden));
  CHECK(PairProgram::Make(layer.Call(), Kernels()) == nullptr);
}

TEST_CASE("programs of layers with other factors have other keys") {
  LayerGraph one(GGML_TYPE_F32), other(GGML_TYPE_F32);
  const auto compute = [](LayerGraph& l) {
    l.Compute(l.Product(l.Scaled(l.Product(l.x(), kInner)), kHidden));
    return PairProgram::KeyOf(l.Call());
  };
  CHECK(compute(one) != compute(other));
}

TEST_CASE("programs of other layers have other keys") {
  LayerGraph one(GGML_TYPE_F32, 1), same(GGML_TYPE_F32, 2), other(GGML_TYPE_F32, 3);
  const auto compute = [](LayerGraph& l, float limit) {
    ggml_tensor* up = l.Product(l.x(), kInner);
    l.Compute(l.Product(ggml_clamp(l.context(), up, -limit, limit), kHidden));
    return PairProgram::KeyOf(l.Call());
  };
  const auto key = compute(one, 1);
  CHECK(compute(same, 1) == key);
  CHECK(compute(other, 2) != key);
}

}  // namespace
}  // namespace moert_ggml
