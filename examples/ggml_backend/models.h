// The expert tensors that llama.cpp has put into our buffers, by model. A model's store is opened
// by its first product, or on a GPU by the first context, and closed when the model's first buffer
// is freed.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_MODELS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_MODELS_H_

#include <ggml.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gguf_model.h"
#include "gpu.h"
#include "options.h"
#include "stats_file.h"
#include "store.h"

namespace moert_ggml {

class Model;

/// The object that the `extra` of an expert tensor points to.
struct ExpertTensor {
  Model* model = nullptr;
  int block = 0;  // "blk.7.": 7
  const ggml_tensor* tensor = nullptr;
  int layer = -1;  // of the store, once it is open
  int part = -1;
};

class Model {
 public:
  Model(std::string stem, std::shared_ptr<const GgufModel> file, int used, const Options& options)
      : stem_(std::move(stem)),
        file_(std::move(file)),
        used_(used),
        options_(options),
        statistics_(options.statistics_file, stem_),
        budget_file_(options.budget_file) {}
  ~Model();

  const std::string& stem() const { return stem_; }
  /// False: the model takes no more tensors, or has one of this name; the tensor is another model's
  /// then.
  bool Add(ggml_tensor* tensor, int block);

  /// Held during a layer call.
  std::mutex& mutex() { return mutex_; }
  /// The store, which is opened in RAM if it is not open; null: that failed and was reported. Needs
  /// the lock.
  Store* store();
  /// Opens the store on a GPU if it is not open. False: it is not on the GPU (reported), and RAM is
  /// left to try. Takes the lock.
  bool OpenOn(Gpu* gpu);
  /// Counts the beginning of a layer call. Needs the lock and the store.
  void Count(int layer, int64_t tokens) {
    if (layer == 0 && due_(EverySecond::Time::clock::now())) Adapt();
    statistics_.Count(layer, tokens, *store_);
  }
  /// Ends the model: no more products over its tensors. Needs the lock.
  void Close();

 private:
  std::vector<Layer> Arrange(Gpu* gpu);
  int UsedExperts(int block) const;
  bool Open(Gpu* gpu, std::string* error);
  // Halves the budget if the user named none: it grows again into the memory that is left.
  void MakeRoom();
  // Applies the budget that is valid from now on.
  void Adapt();

  const std::string stem_;  // of the GGUF's path, without the number of a split file
  const std::shared_ptr<const GgufModel> file_;
  const int used_;  // experts a token uses, as llama.cpp was told; 0: not known
  const Options options_;
  std::mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<ExpertTensor>>> blocks_;
  std::unique_ptr<Store> store_;
  bool opened_ = false;
  StatsFile statistics_;
  EverySecond due_;
  BudgetFile budget_file_;
  int64_t said_ = 0;     // the last budget that was said
  std::string refused_;  // why one was not taken, which has been said
};

/// Opens all loaded models on the GPU; false: one of them is not on it.
bool OpenModelsOn(Gpu* gpu);

/// The expert tensors of a mapped buffer. Not thread-safe: llama.cpp loads on one thread.
struct MappedBuffer {
  std::string stem;
  std::shared_ptr<const GgufModel> file;
  int used = 0;                                // see Model
  std::vector<std::shared_ptr<Model>> models;  // one, unless names clash
  bool all_fit = false;                        // on the GPU: tensors are put there at once
  std::vector<ggml_backend_buffer_t> placed;   // where they lie then
};

/// "dir/model" of "dir/model-00001-of-00003.gguf".
std::string StemOf(const std::string& path);

/// Takes the tensor over if it holds experts of a block ("blk.3.ffn_up_exps.weight").
void AddTensor(MappedBuffer* buffer, ggml_tensor* tensor, const Options& options);
/// Puts an expert tensor on the GPU as a whole, for good: it becomes CUDA's, and this backend gives
/// it up. False: it is no tensor of experts, or there is no memory.
bool PlaceTensor(MappedBuffer* buffer, ggml_tensor* tensor, Gpu* gpu);
/// Removes the buffer and its models.
void RemoveBuffer(MappedBuffer* buffer);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_MODELS_H_
