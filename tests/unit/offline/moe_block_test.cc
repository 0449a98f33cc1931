// Rows through MoE blocks whose experts stay as they are: on threads, with a device, or both.
#include "offline/moe_block.h"

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "cli/pack/host_model.h"
#include "idle_device.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "support/catch.h"
#include "support/tiny_model.h"

namespace moert::offline {
namespace {

/// Does the rows of an even index, as the CPU would.
class EvenRows final : public test::IdleDevice {
 public:
  EvenRows(ThreadPool* single, MatrixProducts* products) : compute_{single, products} {}
  absl::Status AddExperts(const BlockRows& block, const ExpertReader& read, ThreadPool*,
                          std::vector<uint8_t>* done) override {
    const int64_t hidden = block.layer.hidden;
    for (int e = 0; e < block.layer.num_experts; ++e) {
      ExpertWeights stored;
      ExpertMatrices weights;
      absl::Status status = read(e, &stored);
      if (status.ok()) status = WidenExpert(stored, &weights);
      if (!status.ok()) return status;
      const ExpertRows rows = RowsOf(block.routing, e);
      for (size_t i = 0; i < rows.rows.size(); ++i) {
        if (rows.rows[i] % 2 != 0) continue;
        Floats x = GatherRows(block.inputs, hidden, absl::MakeConstSpan(&rows.rows[i], 1));
        REQUIRE_OK(ForwardExpert(block.layer, weights, compute_, nullptr, &x));
        for (int64_t c = 0; c < hidden; ++c) {
          block.residual[rows.rows[i] * hidden + c] += rows.weights[i] * x[static_cast<size_t>(c)];
        }
      }
    }
    for (size_t row = 0; row < done->size(); row += 2) (*done)[row] = 1;
    return absl::OkStatus();
  }

 private:
  const Compute compute_;
};

TEST_CASE("rows pass the experts as they are: the block's, and a device's rows are done once") {
  const std::vector<int32_t> file = ReadEvalTokens("wikitext2");
  const CalibrationTokens tokens{512, {file.begin(), file.begin() + 1024}};
  TinyModel model(3);
  auto experts = CheckpointExperts::Create(model.checkpoint.get(), &model.config);
  REQUIRE_OK(experts.status());
  const auto host = cli::MakeHostModel(std::move(model.decoder), nullptr, tokens.window);
  const auto single = *CreateThreadPool({.threads = 1});
  EvenRows even(single.get(), host->products());
  const ModelContext context = {host.get(), &model.config, model.pool.get()};
  std::vector<Floats> ends;
  for (OfflineDevice* const device :
       {static_cast<OfflineDevice*>(nullptr), static_cast<OfflineDevice*>(&even)}) {
    auto blocks = MoeBlocks::Create(experts->get(), {model.pool.get(), host->products()});
    REQUIRE_OK(blocks.status());
    CalibrationStream stream(context, &tokens);
    for (int l = 0; l < model.config.moe.num_layers(); ++l) {
      REQUIRE_OK((*blocks)->Forward(l, &stream, device));
    }
    const float* const hidden = stream.FinishHidden();
    ends.emplace_back(hidden, hidden + stream.rows() * stream.hidden());
  }
  // And as Run has it.
  auto blocks = MoeBlocks::Create(experts->get(), {model.pool.get(), host->products()});
  REQUIRE_OK(blocks.status());
  CalibrationStream stream(context, &tokens);
  for (int l = 0; l < model.config.moe.num_layers(); ++l) {
    REQUIRE_OK((*blocks)->Run(
        l, &stream,
        [&](int e, const ExpertRows&, Floats* x, ThreadPool* alone) -> absl::Status {
          ExpertWeights stored;
          ExpertMatrices weights;
          absl::Status status = (*experts)->ReadExpert(l, e, &stored);
          if (status.ok()) status = WidenExpert(stored, &weights);
          if (!status.ok()) return status;
          return ForwardExpert(model.config.moe.layers[static_cast<size_t>(l)], weights,
                               {alone, host->products()}, nullptr, x);
        },
        [](int) { return absl::OkStatus(); }));
  }
  const float* const hidden = stream.FinishHidden();
  ends.emplace_back(hidden, hidden + stream.rows() * stream.hidden());
  for (const Floats& end : ends) {
    REQUIRE(end.size() == ends[0].size());
    CHECK(std::memcmp(end.data(), ends[0].data(), end.size() * sizeof(float)) == 0);
  }
}

}  // namespace
}  // namespace moert::offline
