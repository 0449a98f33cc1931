#include "pair_program.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <ggml-impl.h>

#include <algorithm>
#include <cstring>

#include "layer_call.h"
#include "pair_math.h"
#include "row_product.h"

namespace moert_ggml {
namespace {

float Number(const ggml_tensor* node, int at) {
  return ggml_get_op_params_f32(node, static_cast<uint32_t>(at));
}

// The tensor with a row or a number per expert that a node adds to rows or multiplies them by;
// null: none.
const ggml_tensor* PerExpert(const ggml_tensor* node, const ggml_tensor* ids) {
  if (node->op == GGML_OP_ADD_ID) return node->src[1];
  return node->op == GGML_OP_MUL ? FactorsOf(node->src[1], ids) : nullptr;
}

// Whether t holds the rows of pairs, contiguous, [n, k, T].
bool HasPairRows(const LayerCall& call, const ggml_tensor* t) {
  return t->type == GGML_TYPE_F32 && t->ne[1] == call.top_k() && t->ne[2] == call.tokens() &&
         t->ne[3] == 1 && t->nb[0] == sizeof(float);
}

}  // namespace

bool CpuKernels::Find(ggml_backend_dev_t cpu) {
  if (cpu == nullptr) return false;
  void* function = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu),
                                                     "ggml_backend_set_n_threads");
  Dl_info where = {};
  if (function == nullptr || dladdr(function, &where) == 0) return false;
  void* library = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  *reinterpret_cast<void**>(&traits_) = dlsym(library, "ggml_get_type_traits_cpu");
  dlclose(library);  // the host keeps it
  return traits_ != nullptr;
}

std::vector<int64_t> PairProgram::KeyOf(const LayerCall& call) {
  std::vector<int64_t> key = {call.top_k()};
  for (int i = call.first; i <= call.last; ++i) {
    const ggml_tensor* node = call.node(i);
    key.insert(key.end(), {node->op, node->ne[0], node->src[0]->type, node->src[0]->ne[0]});
    for (size_t p = 0; p < 4; ++p) key.push_back(node->op_params[p]);
    if (const ggml_tensor* same = PerExpert(node, call.ids)) {
      key.push_back(reinterpret_cast<intptr_t>(same->data));
    }
  }
  return key;
}

std::shared_ptr<const PairProgram> PairProgram::Make(const LayerCall& call,
                                                     const CpuKernels& kernels) {
  auto program = std::make_shared<PairProgram>();
  program->input_ = call.node(call.first)->src[1];
  const ggml_tensor* x = program->input_;
  const bool one_row = x->type == GGML_TYPE_F32 && x->ne[1] == 1 && x->ne[2] == call.tokens() &&
                       x->ne[3] == 1 && x->nb[0] == sizeof(float);
  const ggml_tensor* out = call.node(call.last);
  if (!one_row || call.reach != call.last || !ggml_is_contiguous(out)) return nullptr;
  for (int i = call.first; i <= call.last; ++i) {
    const ggml_tensor* node = call.node(i);
    const bool factors = node->op == GGML_OP_REPEAT || FactorsOf(node, call.ids) != nullptr;
    if (!IsView(node) && !factors && !program->Add(call, node, kernels)) return nullptr;
  }
  program->key_ = KeyOf(call);
  program->nodes_.clear();
  program->input_ = nullptr;
  for (const Step& step : program->steps_)
    program->levels_ = std::max(program->levels_, step.level);
  return program;
}

bool PairProgram::Find(const LayerCall& call, const ggml_tensor* tensor, Value* value) const {
  if (tensor == input_) {
    *value = {-1, 0, tensor->ne[0]};
    return true;
  }
  if (!HasPairRows(call, tensor)) return false;
  int64_t first = 0;
  const ggml_tensor* whole = tensor;
  while (IsView(whole) && whole->src[0] != nullptr) {
    if (whole->op == GGML_OP_VIEW) {
      size_t offset = 0;
      std::memcpy(&offset, whole->op_params, sizeof offset);
      first += static_cast<int64_t>(offset / sizeof(float));
    }
    whole = whole->src[0];
  }
  const auto at = std::find(nodes_.begin(), nodes_.end(), whole);
  if (at == nodes_.end() || tensor->nb[1] != whole->nb[1] || first + tensor->ne[0] > whole->ne[0]) {
    return false;
  }
  *value = {static_cast<int>(at - nodes_.begin()), first, tensor->ne[0]};
  return true;
}

bool PairProgram::UseGgml(const CpuKernels& kernels, ggml_type type, int64_t columns, Step* step) {
  const ggml_type_traits_cpu* traits = kernels.Of(type);
  if (traits == nullptr || traits->vec_dot == nullptr) return false;
  step->vec_dot = traits->vec_dot;
  step->packed_bytes = ggml_row_size(traits->vec_dot_type, columns);
  if (traits->vec_dot_type == GGML_TYPE_F32) return true;
  step->pack = kernels.Of(traits->vec_dot_type)->from_float;
  return step->pack != nullptr;
}

bool PairProgram::AddProduct(const LayerCall& call, const ggml_tensor* node,
                             const CpuKernels& kernels) {
  const ExpertTensor* experts = ExpertsOf(node);
  Step step;
  if (experts == nullptr || !Find(call, node->src[1], &step.a)) return false;
  const ggml_tensor* weights = node->src[0];
  step.op = node->op;
  step.part = experts->part;
  step.width = node->ne[0];
  step.row_bytes = weights->nb[1];
  const int64_t columns = weights->ne[0];
  step.product = RowProduct::Find(weights->type, columns);
  if (step.product != nullptr) {
    step.pack = step.product->pack;
    step.packed_bytes = step.product->packed_bytes(columns);
  } else if (!UseGgml(kernels, weights->type, columns, &step)) {
    return false;
  }
  step.level = (step.a.step < 0 ? 0 : steps_[static_cast<size_t>(step.a.step)].level) + 1;
  steps_.push_back(std::move(step));
  nodes_.push_back(node);
  return true;
}

bool PairProgram::Add(const LayerCall& call, const ggml_tensor* node, const CpuKernels& kernels) {
  if (!HasPairRows(call, node)) return false;
  if (node->op == GGML_OP_MUL_MAT_ID) return AddProduct(call, node, kernels);
  Step step;
  step.op = node->op;
  step.width = node->ne[0];
  const ggml_tensor* per_expert = PerExpert(node, call.ids);
  step.binary = node->src[1] != nullptr && per_expert == nullptr;
  if (!Find(call, node->src[0], &step.a) || step.a.step < 0) return false;
  if (step.binary && (!Find(call, node->src[1], &step.b) || step.b.step < 0)) return false;
  if (node->op == GGML_OP_UNARY) step.kind = ggml_get_unary_op(node);
  if (node->op == GGML_OP_GLU) {
    step.kind = ggml_get_glu_op(node);
    step.swapped = ggml_get_op_params_i32(node, 1) != 0;
    step.number[0] = Number(node, 2);
    step.number[1] = Number(node, 3);
  } else if (node->op == GGML_OP_SCALE || node->op == GGML_OP_CLAMP) {
    step.number[0] = Number(node, 0);
    step.number[1] = Number(node, 1);
  }
  if (per_expert != nullptr) {
    if (per_expert->type != GGML_TYPE_F32 || !ggml_is_contiguous(per_expert)) return false;
    step.per_expert.resize(static_cast<size_t>(ggml_nelements(per_expert)));
    ggml_backend_tensor_get(per_expert, step.per_expert.data(), 0, ggml_nbytes(per_expert));
  } else if (!KnowsPairMath(step.op, step.kind)) {
    return false;
  }
  for (const Value* value : {&step.a, &step.b}) {
    if (value->step < 0) continue;
    step.level = std::max(step.level, steps_[static_cast<size_t>(value->step)].level);
  }
  steps_.push_back(std::move(step));
  nodes_.push_back(node);
  return true;
}

// Runs one job.
class PairProgram::Runner {
 public:
  Runner(const PairProgram& program, const moert_cpu_job& job, Memory* memory)
      : steps_(program.steps_), job_(job), memory_(*memory) {
    memory_.rows.resize(steps_.size());
    memory_.operands.resize(steps_.size());
    for (size_t s = 0; s < steps_.size(); ++s) {
      const auto rows = static_cast<size_t>(job.pairs);
      Grow(&memory_.rows[s], rows * static_cast<size_t>(steps_[s].width));
      if (steps_[s].pack != nullptr) {
        Grow(&memory_.operands[s],
             std::max(rows, static_cast<size_t>(job.rows)) * steps_[s].packed_bytes);
      }
    }
    for (int64_t e = 0; e < job.num_experts; ++e) {
      expert_of_.insert(expert_of_.end(), static_cast<size_t>(job.experts[e].pairs), e);
    }
  }

  void Level(int level) {
    level_ = level;
    // Element-wise steps after the last products, which make the inputs of the next ones.
    const int64_t rows = level == 1 ? job_.rows : job_.pairs;
    if (rows == 1) {
      PrepareRow(0);
    } else {
      job_.run(
          job_.pool, rows,
          [](void* self, int64_t row, int32_t) { static_cast<Runner*>(self)->PrepareRow(row); },
          this);
    }
    units_ = 0;
    for (const Step& step : steps_) {
      if (IsProduct(step)) units_ += job_.num_experts * step.width;
    }
    constexpr int64_t kTasks = 4;  // a thread
    constexpr int64_t kFewest = 16;
    chunk_ = std::max(kFewest, (units_ + job_.threads * kTasks - 1) / (job_.threads * kTasks));
    job_.run(
        job_.pool, (units_ + chunk_ - 1) / chunk_,
        [](void* self, int64_t task, int32_t) { static_cast<Runner*>(self)->Multiply(task); },
        this);
  }

  void Finish() {
    const std::vector<float>& last = memory_.rows.back();
    std::copy_n(last.begin(), static_cast<size_t>(job_.pairs * job_.hidden), job_.out);
  }

 private:
  template <typename T>
  static void Grow(std::vector<T>* memory, size_t size) {
    if (memory->size() < size) memory->resize(size);
  }
  bool IsProduct(const Step& step) const {
    return step.op == GGML_OP_MUL_MAT_ID && step.level == level_;
  }
  const float* RowOf(const Value& value, int64_t row) const {
    if (value.step < 0) return job_.x + row * job_.hidden;
    const auto s = static_cast<size_t>(value.step);
    return memory_.rows[s].data() + row * steps_[s].width + value.first;
  }

  void PrepareRow(int64_t row) {
    for (size_t s = 0; s < steps_.size(); ++s) {
      const Step& step = steps_[s];
      if (IsProduct(step) && step.pack != nullptr) {
        step.pack(RowOf(step.a, row),
                  memory_.operands[s].data() + static_cast<size_t>(row) * step.packed_bytes,
                  step.a.width);
      } else if (step.op != GGML_OP_MUL_MAT_ID && step.level == level_ - 1) {
        ComputeRow(step, row, memory_.rows[s].data() + row * step.width);
      }
    }
  }

  void ComputeRow(const Step& step, int64_t pair, float* out) const {
    const float* a = RowOf(step.a, pair);
    if (!step.per_expert.empty()) {
      const int64_t expert = job_.experts[expert_of_[static_cast<size_t>(pair)]].expert;
      if (step.op == GGML_OP_MUL) {
        for (int64_t i = 0; i < step.width; ++i) out[i] = a[i] * step.per_expert[expert];
        return;
      }
      const float* bias = step.per_expert.data() + expert * step.width;
      for (int64_t i = 0; i < step.width; ++i) out[i] = a[i] + bias[i];
      return;
    }
    PairMath math{step.op, step.kind, {step.number[0], step.number[1]}};
    const float* b = step.binary ? RowOf(step.b, pair) : nullptr;
    if (step.op == GGML_OP_GLU && b == nullptr) {  // halves of one row
      b = a + (step.swapped ? 0 : step.width);
      a += step.swapped ? step.width : 0;
    }
    math.Run(a, b, step.width, out);
  }

  // Computes rows of weights [task * chunk, ...) over all products and experts, each with all its
  // pairs.
  void Multiply(int64_t task) {
    int64_t begin = task * chunk_, left = std::min(chunk_, units_ - begin);
    for (size_t s = 0; s < steps_.size() && left > 0; ++s) {
      const Step& step = steps_[s];
      if (!IsProduct(step)) continue;
      int64_t first_pair = 0;
      for (int64_t e = 0; e < job_.num_experts && left > 0; ++e) {
        const int64_t rows = std::min(left, std::max<int64_t>(step.width - begin, 0));
        if (rows > 0) MultiplyRows(s, e, first_pair, begin, rows);
        left -= rows;
        begin = rows > 0 ? 0 : begin - step.width;
        first_pair += job_.experts[e].pairs;
      }
    }
  }

  // Multiplies rows [begin, begin + rows) of an expert's weights with all its pairs, several at
  // once.
  void MultiplyRows(size_t s, int64_t expert, int64_t first_pair, int64_t begin, int64_t rows) {
    const Step& step = steps_[s];
    const moert_cpu_expert& from = job_.experts[expert];
    const auto* weights = static_cast<const char*>(from.part[step.part]);
    const RowBlock block = {weights + static_cast<size_t>(begin) * step.row_bytes, step.row_bytes,
                            rows, step.a.width};
    for (int64_t p = 0; p < from.pairs; p += RowProduct::kMostInputs) {
      const int64_t pair = first_pair + p;
      const auto some =
          static_cast<int>(std::min<int64_t>(from.pairs - p, RowProduct::kMostInputs));
      const void* inputs[RowProduct::kMostInputs];
      for (int i = 0; i < some; ++i) inputs[i] = InputOf(s, pair + i);
      float* const out = memory_.rows[s].data() + pair * step.width + begin;
      if (step.product != nullptr) {
        step.product->multiply(block, inputs, some, out, step.width);
      } else {
        MultiplyByGgml(step, block, inputs, some, out);
      }
    }
  }

  const void* InputOf(size_t s, int64_t pair) const {
    const Step& step = steps_[s];
    const int64_t source = step.a.step < 0 ? job_.row_of[pair] : pair;
    if (step.pack == nullptr) return RowOf(step.a, source);
    return memory_.operands[s].data() + static_cast<size_t>(source) * step.packed_bytes;
  }

  static void MultiplyByGgml(const Step& step, const RowBlock& block, const void* const* inputs,
                             int count, float* out) {
    for (int64_t r = 0; r < block.rows; ++r) {
      const char* row =
          static_cast<const char*>(block.first) + static_cast<size_t>(r) * block.bytes;
      for (int i = 0; i < count; ++i) {
        step.vec_dot(static_cast<int>(block.columns), out + i * step.width + r, 0, row, 0,
                     inputs[i], 0, 1);
      }
    }
  }

  const std::vector<Step>& steps_;
  const moert_cpu_job& job_;
  Memory& memory_;
  std::vector<int64_t> expert_of_;
  int level_ = 0;
  int64_t units_ = 0, chunk_ = 1;
};

void PairProgram::Run(const moert_cpu_job& job, Memory* memory) const {
  Runner runner(*this, job, memory);
  for (int level = 1; level <= levels_; ++level) runner.Level(level);
  runner.Finish();
}

}  // namespace moert_ggml
