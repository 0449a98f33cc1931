// Runs an unmodified llama.cpp for the tests.
//   host quantize IN OUT TYPE         TYPE: see kTypes; those of k-quants mix, as users have them
//   host logits MODEL OUT [MODE ...]  writes the logits of prompts and of decoding to OUT
//     cpu_moe, override: what --cpu-moe and -ot exps=MOERT do; no_mmap; mlock; reload: the model
//     twice, one behind the other; two: twice at once; unload: the plug-in is unloaded and loaded
//     again between two; parallel: two sequences in a batch; shift: a context shift; tight: no
//     address space is left once the model is loaded; gpu: everything that can be is on the GPU;
//     repack: with weights rearranged, llama.cpp's default; callback: an evaluation callback reads
//     inputs and results of the products over experts, which go to OUT, too; used2: two experts a
//     token, whatever the file says; lora: with the adapter HOST_LORA; prompts: one behind the
//     other, of 9 to 200 tokens, and no decoding; whole: on the device MOERT0
//   host cut MODEL                    cuts the end of the file off while it is in use. Succeeds
//   when
//     decoding fails for it, and nothing else does
//   host time MODEL PROMPT TOKENS THREADS [MODE ...]  milliseconds of a prompt, the
//     second of its length, and of a token: by the clock, and of the processor
#include <ggml-backend.h>
#include <llama.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace {

int Fail(const char* what) {
  std::fprintf(stderr, "host: %s\n", what);
  return 1;
}

struct Type {
  const char* name;
  llama_ftype type;
  bool pure = true;  // all matrices alike
};
constexpr Type kTypes[] = {
    {"bf16", LLAMA_FTYPE_MOSTLY_BF16},
    {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
    {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},
    {"q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
    {"q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},
    {"q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
    {"q4_k", LLAMA_FTYPE_MOSTLY_Q4_K_S},
    {"q6_k", LLAMA_FTYPE_MOSTLY_Q6_K},
    {"iq4_nl", LLAMA_FTYPE_MOSTLY_IQ4_NL},
    {"iq4_xs", LLAMA_FTYPE_MOSTLY_IQ4_XS},
    {"q2_k_m", LLAMA_FTYPE_MOSTLY_Q2_K, false},
    {"q3_k_m", LLAMA_FTYPE_MOSTLY_Q3_K_M, false},
    {"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M, false},
    {"q5_k_m", LLAMA_FTYPE_MOSTLY_Q5_K_M, false},
    {"iq3_s_m", LLAMA_FTYPE_MOSTLY_IQ3_S, false},
    {"mxfp4", LLAMA_FTYPE_MOSTLY_MXFP4_MOE, false},
};

int Quantize(const char* in, const char* out, const std::string& name) {
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.nthread = 2;
  for (const Type& type : kTypes) {
    if (type.name != name) continue;
    params.ftype = type.type;
    params.pure = type.pure;
    return llama_model_quantize(in, out, &params) == 0 ? 0 : Fail("cannot quantize");
  }
  return Fail("no such type");
}

struct Modes {
  std::set<std::string> on;
  int threads = 2;

  bool operator[](const char* mode) const { return on.count(mode) > 0; }

  bool Read(int argc, char** argv) {
    static const std::set<std::string> known = {
        "cpu_moe", "override", "no_mmap",  "mlock",   "reload", "two",
        "unload",  "parallel", "shift",    "tight",   "gpu",    "repack",
        "used2",   "lora",     "callback", "prompts", "whole"};
    on = std::set<std::string>(argv, argv + argc);
    if (on.count("tight") > 0) threads = 1;  // others would have no stack
    return std::includes(known.begin(), known.end(), on.begin(), on.end());
  }
};

// A model and a context of it.
class Host {
 public:
  Host(const char* path, const Modes& modes, int batch) : modes_(modes) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = modes["gpu"] ? 99 : 0;
    params.use_extra_bufts = modes["repack"];  // which have results of their own
    params.load_mode = modes["no_mmap"] ? LLAMA_LOAD_MODE_NONE
                       : modes["mlock"] ? LLAMA_LOAD_MODE_MMAP_MLOCK
                                        : LLAMA_LOAD_MODE_MMAP;
    llama_model_tensor_buft_override overrides[2] = {};
    if (modes["cpu_moe"]) {
      overrides[0] = {"\\.ffn_(up|down|gate|gate_up)_(ch|)exps", ggml_backend_cpu_buffer_type()};
      params.tensor_buft_overrides = overrides;
    } else if (modes["override"]) {
      ggml_backend_dev_t device = ggml_backend_dev_by_name("MOERT");
      if (device == nullptr) return;
      overrides[0] = {"exps", ggml_backend_dev_buffer_type(device)};
      params.tensor_buft_overrides = overrides;
    }
    ggml_backend_dev_t devices[] = {ggml_backend_dev_by_name("MOERT0"), nullptr};
    if (modes["whole"]) {
      if (devices[0] == nullptr) return;
      params.devices = devices;
    }
    llama_model_kv_override used[2] = {};
    used[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
    std::strcpy(used[0].key, "qwen3moe.expert_used_count");
    used[0].val_i64 = 2;
    if (modes["used2"]) params.kv_overrides = used;
    model_ = llama_model_load_from_file(path, params);
    if (model_ == nullptr) return;
    llama_context_params context = llama_context_default_params();
    context.n_ctx = 2048;
    context.n_batch = static_cast<uint32_t>(batch);
    context.n_ubatch = static_cast<uint32_t>(batch);
    context.n_seq_max = 2;
    context.n_threads = modes.threads;
    context.n_threads_batch = modes.threads;
    if (modes["callback"]) {
      context.cb_eval = Evaluated;
      context.cb_eval_user_data = this;
    }
    context_ = llama_init_from_model(model_, context);
    if (!modes["lora"]) return;
    llama_adapter_lora* adapter = llama_adapter_lora_init(model_, std::getenv("HOST_LORA"));
    float scale = 1;
    if (adapter == nullptr || llama_set_adapters_lora(context_, &adapter, 1, &scale) != 0) {
      llama_free(context_);
      context_ = nullptr;
    }
  }
  ~Host() {
    llama_free(context_);
    llama_model_free(model_);
  }
  bool ok() const { return context_ != nullptr; }
  const std::vector<float>& seen() const { return seen_; }
  llama_context* context() { return context_; }

  // Decodes `count` tokens of each sequence; the logits of the last of each are appended.
  bool Decode(int first, int count, std::vector<float>* logits) {
    const int sequences = modes_["parallel"] ? 2 : 1;
    const int words = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    llama_batch batch = llama_batch_init(count * sequences, 0, 1);
    for (int s = 0; s < sequences; ++s) {
      for (int i = 0; i < count; ++i) {
        const int at = batch.n_tokens++;
        batch.token[at] = 3 + ((first + i) * 37 + s * 11) % std::min(256, words - 3);
        batch.pos[at] = first + i;
        batch.n_seq_id[at] = 1;
        batch.seq_id[at][0] = s;
        batch.logits[at] = i == count - 1;
      }
    }
    const bool ok = llama_decode(context_, batch) == 0;
    for (int i = 0; ok && i < batch.n_tokens; ++i) {
      if (!batch.logits[i] || logits == nullptr) continue;
      const float* row = llama_get_logits_ith(context_, i);
      logits->insert(logits->end(), row, row + words);
    }
    llama_batch_free(batch);
    return ok;
  }

 private:
  // As llama-imatrix asks: for the products over experts, one by one.
  static bool Evaluated(ggml_tensor* node, bool ask, void* host) {
    if (node->op != GGML_OP_MUL_MAT_ID || ask) return node->op == GGML_OP_MUL_MAT_ID;
    auto& seen = static_cast<Host*>(host)->seen_;
    for (const ggml_tensor* t : {node->src[1], node}) {
      const size_t at = seen.size(), bytes = ggml_nbytes(t);
      seen.resize(at + bytes / sizeof(float));
      ggml_backend_tensor_get(t, seen.data() + at, 0, bytes);
    }
    return true;
  }

  const Modes modes_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  std::vector<float> seen_;
};

// A prompt in one piece, a short one, and tokens one by one; or prompts alone.
bool Logits(Host* host, std::vector<float>* logits, bool shift = false, bool prompts = false) {
  const std::vector<int> all = {96, 7, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1},
                         long_ones = {9, 40, 200, 9, 40};
  int at = 0;
  for (const int count : prompts ? long_ones : all) {
    if (!host->Decode(at, count, logits)) return false;
    at += count;
  }
  if (!shift) return true;
  // As a server does whose context is full: tokens in the middle go, those behind move up.
  llama_memory_t memory = llama_get_memory(host->context());
  if (!llama_memory_can_shift(memory) || !llama_memory_seq_rm(memory, 0, 10, 50)) return false;
  llama_memory_seq_add(memory, 0, 50, at, -40);
  at -= 40;
  return host->Decode(at, 5, logits) && host->Decode(at + 5, 1, logits);
}

// The address space that the process may still have: much less than the experts of a test model.
bool LeaveLittleAddressSpace() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit = {};
  limit.rlim_cur = limit.rlim_max =
      static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (rlim_t{8} << 20);
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

bool LoadPlugInAgain() {
  const char* path = std::getenv("GGML_BACKEND_PATH");
  if (path == nullptr) return true;
  ggml_backend_reg_t registry = ggml_backend_reg_by_name("MOERT");
  if (registry == nullptr) return false;
  ggml_backend_unload(registry);
  return ggml_backend_reg_by_name("MOERT") == nullptr && ggml_backend_load(path) != nullptr;
}

// Runs one model after the other; `logits` are the last one's.
bool LogitsOf(const char* path, const Modes& modes, std::vector<float>* logits) {
  logits->clear();
  Host host(path, modes, 256);
  if (!host.ok()) return false;
  if (modes["tight"] && !LeaveLittleAddressSpace()) return false;
  if (!modes["two"]) {
    const bool ok = Logits(&host, logits, modes["shift"], modes["prompts"]);
    logits->insert(logits->end(), host.seen().begin(), host.seen().end());
    return ok;
  }
  Host other(path, modes, 256);
  return other.ok() && other.Decode(0, 50, nullptr) && Logits(&host, logits) &&
         other.Decode(50, 5, nullptr);
}

int RunLogits(const char* path, const char* out, const Modes& modes) {
  std::vector<float> logits;
  if (!LogitsOf(path, modes, &logits)) return Fail("cannot decode");
  if (modes["unload"] && !LoadPlugInAgain()) return Fail("cannot load the plug-in again");
  if ((modes["reload"] || modes["unload"]) && !LogitsOf(path, modes, &logits)) {
    return Fail("cannot decode after a reload");
  }
  std::FILE* file = std::fopen(out, "wb");
  if (file == nullptr) return Fail("cannot write");
  std::fwrite(logits.data(), sizeof(float), logits.size(), file);
  return std::fclose(file) == 0 ? 0 : Fail("cannot write");
}

int RunCut(const char* path) {
  Host host(path, Modes{}, 256);
  if (!host.ok() || !host.Decode(0, 96, nullptr)) return Fail("cannot decode");
  // The last tensor of make_gguf.py's qwen3moe is one of experts.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - (1 << 20));
  for (int at = 96; at < 1024; at += 96) {
    if (!host.Decode(at, 96, nullptr)) return 0;
  }
  return Fail("decoded what is not there");
}

double Milliseconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since)
      .count();
}

// The processor time of all threads.
double CpuMilliseconds(std::clock_t since) {
  return 1e3 * static_cast<double>(std::clock() - since) / CLOCKS_PER_SEC;
}

int RunTime(const char* path, int prompt, int tokens, const Modes& modes) {
  Host host(path, modes, 512);
  if (!host.ok()) return Fail("cannot load the model");
  const auto decode = [&](int first) {
    for (int at = 0; at < prompt; at += 512) {
      if (!host.Decode(first + at, std::min(512, prompt - at), nullptr)) return false;
    }
    return true;
  };
  if (!decode(0)) return Fail("cannot decode");  // what is read but once is in memory then
  auto begin = std::chrono::steady_clock::now();
  std::clock_t cpu = std::clock();
  if (!decode(prompt)) return Fail("cannot decode");
  const double prompt_ms = Milliseconds(begin), prompt_cpu = CpuMilliseconds(cpu);
  begin = std::chrono::steady_clock::now();
  cpu = std::clock();
  for (int i = 0; i < tokens; ++i) {
    if (!host.Decode(2 * prompt + i, 1, nullptr)) return Fail("cannot decode");
  }
  std::printf("prompt ms %.1f cpu_ms %.1f   token ms %.2f cpu_ms %.2f\n", prompt_ms, prompt_cpu,
              Milliseconds(begin) / tokens, CpuMilliseconds(cpu) / tokens);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("HOST_VERBOSE") == nullptr) {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT)
            std::fputs(text, stderr);
        },
        nullptr);
  }
  ggml_backend_load_all();
  const std::string command = argc > 1 ? argv[1] : "";
  Modes modes;
  if (command == "quantize" && argc == 5) return Quantize(argv[2], argv[3], argv[4]);
  if (command == "logits" && argc >= 4 && modes.Read(argc - 4, argv + 4)) {
    return RunLogits(argv[2], argv[3], modes);
  }
  if (command == "cut" && argc == 3) return RunCut(argv[2]);
  if (command == "time" && argc >= 6 && modes.Read(argc - 6, argv + 6)) {
    modes.threads = std::atoi(argv[5]);
    return RunTime(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), modes);
  }
  return Fail("bad arguments, see the top of host.cc");
}
