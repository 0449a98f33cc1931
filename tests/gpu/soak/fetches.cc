// Fetches of the soak: a host with a kernel of its own over slots.
#include <random>

#include "soak.h"
#include "tests/gpu/toy_fetch.h"

namespace moert::soak {
namespace {

using test::OpaqueModel;
constexpr int kE = OpaqueModel::kExperts, kK = OpaqueModel::kTopK;

class Host {
 public:
  Host(Engine* engine, const std::vector<std::vector<double>>& products)
      : engine_(engine),
        products_(products),
        ids_(kK * sizeof(int32_t)),
        slots_(kE * sizeof(int32_t)),
        out_(kE * sizeof(double)) {}

  bool Step(std::mt19937* random) {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = 1;
    info.stream = stream_.get();
    auto step = engine_->Begin(info);
    if (Failed(step.status(), "Begin")) return false;
    bool whole = true;
    for (int l = 0; l < OpaqueModel::kLayers && whole; ++l) {
      const auto a = static_cast<int32_t>((*random)() % kE);
      const int32_t b = (*random)() % 8 == 0 ? -1 : (a + 1 + static_cast<int32_t>(l)) % kE;
      whole = Fetch(&*step, l, {a, b}, (*random)() % 8 == 0 ? Place::kHost : Place::kDevice);
      if (whole && (*random)() % 16 == 0) whole = Copy(&*step, l);
    }
    return !Failed(step->End(), "End") && whole;
  }

 private:
  bool Fetch(moert::Step* step, int layer, const std::vector<int32_t>& ids, Place place) {
    const test::ToyCall at{ids_.at<int32_t>(), slots_.at<int32_t>(), out_.at<double>()};
    SlotView view;
    const absl::Status status =
        test::FetchAndMultiply(engine_, step->id(), layer, place, ids, at, stream_.get(), &view);
    if (Failed(status, "Fetch")) return false;
    Check(layer, ids);
    ++counts.fetches;
    return true;
  }
  bool Copy(moert::Step* step, int layer) {
    SlotView view;
    if (Failed(step->CopyLayer(layer, {}, nullptr, &view), "CopyLayer")) return false;
    const Buffer to(static_cast<size_t>(view.slots * view.parts[0].stride));
    if (Failed(step->CopyLayer(layer, {}, to.at<std::byte>(), &view), "CopyLayer")) return false;
    std::vector<int32_t> every;
    for (int e = 0; e < kE; ++e) every.push_back(e);
    stream_.Upload(slots_.at<int32_t>(), every.data(), kE * sizeof(int32_t));
    Own(test::LaunchToy(test::WeightsOf(view), slots_.at<int32_t>(), kE, test::kX,
                        out_.at<double>(), stream_.get()));
    Check(layer, every);
    ++counts.copies;
    return true;
  }
  void Check(int layer, const std::vector<int32_t>& ids) {
    std::vector<double> out(ids.size());
    stream_.Download(out.data(), out_.at<double>(), out.size() * sizeof(double));
    const std::vector<double>& products = products_[static_cast<size_t>(layer)];
    for (size_t i = 0; i < ids.size(); ++i) {
      counts.wrong += out[i] != (ids[i] < 0 ? -1 : products[static_cast<size_t>(ids[i])]);
    }
  }

  Engine* const engine_;
  const std::vector<std::vector<double>>& products_;
  const Buffer ids_, slots_, out_;
  const Stream stream_;
};

}  // namespace

void RunFetches(Engine* engine, const std::vector<std::vector<double>>& products, unsigned seed) {
  constexpr double kFractions[] = {0.3, 0.5, 0.8};
  std::mt19937 random(seed);
  Host host(engine, products);
  while (!stop) {
    (void)host.Step(&random);
    if (random() % 32 != 0) continue;
    ++counts.budgets;
    (void)Failed(engine->SetBudget(Budget::Fraction(kFractions[random() % 3])), "SetBudget");
  }
}

}  // namespace moert::soak
