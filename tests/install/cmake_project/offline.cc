// Quantizes a checkpoint, verifies the pack and says what it holds.
#include <cstdio>

#include "moert/offline/pack.h"
#include "moert/offline/quantize.h"
#include "moert/thread_pool.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  moert::QuantizeJob job;
  job.model = argv[1];
  job.out = argv[2];
  job.schemes = {*moert::Scheme::Parse("bf16"), *moert::Scheme::Parse("w4a16_g128")};
  job.method = moert::QuantMethod::kHqq;
  absl::Status status = moert::RunQuantizeJob(job);
  if (status.ok()) {
    const auto pool = moert::CreateThreadPool({});
    const auto found = moert::VerifyPack(job.out, moert::Env::Default(), pool->get(), nullptr);
    status = found.status();
    if (status.ok() && !found->damage.empty()) status = absl::DataLossError(found->damage[0]);
  }
  const auto info = moert::ReadPackInfo(job.out);
  status.Update(info.status());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  for (const moert::PackVersion& version : info->versions) {
    const auto size = moert::SizeOf(info->model, version);
    std::printf("%s: %.3f bits a weight\n", version.name.c_str(), size->stored_bits());
  }
  return 0;
}
