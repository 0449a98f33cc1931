#include "base/ewma.h"

#include "tests/support/catch.h"

namespace moert {
namespace {

constexpr EwmaOptions kPlain{.weight = 0.25};
constexpr EwmaOptions kEven{.even = 4};
constexpr EwmaOptions kGuarded{.weight = 0.5, .outlier = 2, .trusted = 2};

TEST_CASE("the first sample is the mean, later ones have the weight") {
  Ewma<kPlain> mean;
  CHECK(!mean.measured());
  CHECK(mean.mean() == 0);
  mean.Add(8);
  CHECK(mean.measured());
  CHECK(mean.mean() == 8);
  mean.Add(16);
  CHECK(mean.mean() == 10);
  mean.Add(0, 0.5);
  CHECK(mean.mean() == 5);
}

TEST_CASE("a guess counts as what was measured before") {
  Ewma<kPlain> mean(8);
  CHECK(mean.measured());
  mean.Add(16);
  CHECK(mean.mean() == 10);
}

TEST_CASE("the first samples count alike, later ones as the last of these") {
  Ewma<kEven> mean;
  for (const double sample : {4, 8, 12, 16}) mean.Add(sample);
  CHECK(mean.mean() == 10);
  CHECK(mean.samples() == 4);
  mean.Add(50);
  CHECK(mean.mean() == 20);
  CHECK(mean.samples() == 4);
}

TEST_CASE("an outlier is cut once enough samples are in") {
  Ewma<kGuarded> mean;
  mean.Add(1);
  mean.Add(99);  // one sample says nothing of what is usual
  CHECK(mean.mean() == 50);
  mean.Add(1000);
  CHECK(mean.mean() == 75);
}

}  // namespace
}  // namespace moert
