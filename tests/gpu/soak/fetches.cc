// Fetches of the soak: a host with a kernel of its own over slots.
#include <random>

#include "soak.h"
#include "tests/gpu/toy_kernel.h"

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
    std::vector<int32_t> host_slots(kK, -1);
    FetchInput input;
    input.place = place;
    if (place == Place::kHost) {
      input.ids = ids;
      input.slot_ids = absl::MakeSpan(host_slots);
    } else {
      stream_.Upload(ids_.at<int32_t>(), ids.data(), kK * sizeof(int32_t));
      input.ids = {ids_.at<int32_t>(), kK};
      input.slot_ids = {slots_.at<int32_t>(), kK};
    }
    SlotView view;
    if (Failed(step->Fetch(layer, input, &view), "Fetch")) return false;
    if (place == Place::kHost) {
      stream_.Upload(slots_.at<int32_t>(), host_slots.data(), kK * sizeof(int32_t));
    }
    Multiply(view, kK);
    const bool released = !Failed(step->ReleaseFetched(layer), "ReleaseFetched");
    Check(layer, ids);
    ++counts.fetches;
    return released;
  }
  bool Copy(moert::Step* step, int layer) {
    SlotView view;
    if (Failed(step->CopyLayer(layer, {}, nullptr, &view), "CopyLayer")) return false;
    const Buffer to(static_cast<size_t>(view.slots * view.parts[0].stride));
    if (Failed(step->CopyLayer(layer, {}, to.at<std::byte>(), &view), "CopyLayer")) return false;
    std::vector<int32_t> every;
    for (int e = 0; e < kE; ++e) every.push_back(e);
    stream_.Upload(slots_.at<int32_t>(), every.data(), kE * sizeof(int32_t));
    Multiply(view, kE);
    Check(layer, every);
    ++counts.copies;
    return true;
  }
  void Multiply(const SlotView& view, int count) {
    test::ToyWeights weights{};
    for (size_t p = 0; p < test::ToyWeights::kParts; ++p) {
      weights.base[p] = view.parts[p].base;
      weights.stride[p] = view.parts[p].stride;
      weights.bytes[p] = view.parts[p].bytes;
    }
    Own(test::LaunchToy(weights, slots_.at<int32_t>(), count, 0.5, out_.at<double>(),
                        stream_.get()));
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
