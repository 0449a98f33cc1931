#include <algorithm>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "cub_kernels.h"
#include "kernels/cuda/cache/find_victims.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/few/give_waves.cuh"
#include "kernels/cuda/primitives/cta_sums.cuh"

namespace moert::test {
namespace {

using cuda::kFewExperts;
using cuda::kTileThreads;
using cuda::LeavingKey;
using cuda::Several;

/// Each way has kThreads, Scratch, and by all threads Run(mine, scratch).
template <typename Way>
__global__ void __launch_bounds__(Way::kThreads)
    RunKernel(const uint32_t* in, int rounds, uint32_t none, uint32_t* out) {
  extern __shared__ __align__(16) uint8_t shared[];
  auto& scratch = *reinterpret_cast<typename Way::Scratch*>(shared);
  const uint32_t mine = in[threadIdx.x];
  uint32_t result = 0;
  for (int round = 0; round < rounds; ++round) {
    result = Way::Run(mine + (result & none), scratch);
    __syncthreads();
  }
  out[threadIdx.x] = result;
}

template <typename Way>
cudaError_t Run(const uint32_t* in, int rounds, uint32_t* out, cudaStream_t stream) {
  RunKernel<Way><<<1, Way::kThreads, sizeof(typename Way::Scratch), stream>>>(in, rounds, 0, out);
  return cudaGetLastError();
}

/// Sums of several numbers over the threads before, and over all.
template <typename T, int kCount>
struct AddSeveral {
  using Sums = Several<T, kCount>;
  __device__ Sums operator()(const Sums& a, const Sums& b) const {
    Sums sum;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.v[i] = a.v[i] + b.v[i];
    return sum;
  }
  static __device__ Sums Of(uint32_t mine) {
    Sums sums;
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums.v[i] = static_cast<T>(mine >> 4 * i & 0xff);
    return sums;
  }
  static __device__ uint32_t Mix(const Sums& before, const Sums& all) {
    uint32_t mixed = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mixed = mixed * 31 + static_cast<uint32_t>(before.v[i]) + 7 * static_cast<uint32_t>(all.v[i]);
    }
    return mixed;
  }
};
template <typename T, int kCount, int kOf>
struct OwnSums {
  using Add = AddSeveral<T, kCount>;
  static constexpr int kThreads = kOf;
  struct Scratch {
    Several<T, kCount> sums[32];
  };
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    Several<T, kCount> all;
    const Several<T, kCount> before = SumBefore(Add::Of(mine), scratch.sums, &all);
    return Add::Mix(before, all);
  }
};
template <typename T, int kCount, int kOf>
struct CubSums {
  using Add = AddSeveral<T, kCount>;
  using Scan = cub::BlockScan<Several<T, kCount>, kOf, cub::BLOCK_SCAN_WARP_SCANS>;
  static constexpr int kThreads = kOf;
  using Scratch = typename Scan::TempStorage;
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    Several<T, kCount> before, all;
    Scan(scratch).ExclusiveScan(Add::Of(mine), before, Several<T, kCount>{}, Add{}, all);
    return Add::Mix(before, all);
  }
};

/// The place of a thread among those of its wave.
struct OwnPlaces {
  static constexpr int kThreads = kTileThreads;
  using Scratch = cuda::FewTilesScratch;
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    const cuda::WavePlace place = cuda::PlaceInWave(static_cast<int>(mine % 3) - 1, scratch);
    return static_cast<uint32_t>(place.at | place.ready << 10 | place.late << 20);
  }
};
struct CubPlaces {
  static constexpr int kThreads = kTileThreads;
  using Scan = cub::BlockScan<uint32_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  using Scratch = typename Scan::TempStorage;
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    const uint32_t wave = mine % 3;
    uint32_t before = 0, all = 0;
    Scan(scratch).ExclusiveSum((wave == 1 ? 1U : 0) | (wave == 2 ? 1U << 16 : 0), before, all);
    return (wave == 2 ? before >> 16 : before & 0xffff) | (all & 0xffff) << 10 | all >> 16 << 20;
  }
};

/// The places of kKeys keys among each other, of a thread each.
template <int kKeys>
struct OwnRanks {
  static constexpr int kThreads = kTileThreads;
  struct Scratch {
    uint32_t keys[kKeys];
  };
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    const int e = threadIdx.x;
    const uint32_t key = cuda::MissKey(static_cast<int32_t>(mine % 64), e);
    if (e < kKeys) scratch.keys[e] = key;
    __syncthreads();
    return e < kKeys ? cuda::RankOf(scratch.keys, kKeys, key) : 0;
  }
};
template <int kKeys>
struct CubRanks {
  static constexpr int kThreads = kTileThreads;
  using Sort = cub::BlockRadixSort<uint32_t, kThreads, 1, int32_t>;
  union Scratch {
    typename Sort::TempStorage sort;
    int32_t ranks[kThreads];
  };
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    const int e = threadIdx.x;
    uint32_t key[1] = {e < kKeys ? cuda::MissKey(static_cast<int32_t>(mine % 64), e) : ~0U};
    int32_t of[1] = {e};
    Sort(scratch.sort).Sort(key, of);
    __syncthreads();
    scratch.ranks[of[0]] = e;
    __syncthreads();
    return e < kKeys ? scratch.ranks[e] : 0;
  }
};

/// The kLeaving least of the keys of kFewExperts experts.
struct LessKey {
  __device__ bool operator()(const LeavingKey& a, const LeavingKey& b) const {
    return a.worth < b.worth || (a.worth == b.worth && a.use < b.use);
  }
  static __device__ LeavingKey Of(uint32_t mine) {
    return {mine % 32, uint64_t{mine / 32 % 4} << 32 | threadIdx.x};
  }
};
template <int kLeaving>
struct OwnVictims {
  static constexpr int kThreads = kFewExperts;
  using Scratch = cuda::VictimScratch;
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    return cuda::FindVictims(LessKey::Of(mine), /*in=*/true, kLeaving, scratch);
  }
};
template <int kLeaving>
struct CubVictims {
  static constexpr int kThreads = kFewExperts;
  using Sort = cub::BlockMergeSort<LeavingKey, kThreads, 1, int32_t>;
  union Scratch {
    __device__ Scratch() {}
    typename Sort::TempStorage sort;
    int32_t places[kThreads];
  };
  static __device__ uint32_t Run(uint32_t mine, Scratch& scratch) {
    LeavingKey key[1] = {LessKey::Of(mine)};
    int32_t of[1] = {static_cast<int32_t>(threadIdx.x)};
    Sort(scratch.sort).Sort(key, of, LessKey{});
    __syncthreads();
    scratch.places[of[0]] = threadIdx.x;
    __syncthreads();
    const int place = scratch.places[threadIdx.x];
    return place < kLeaving ? place : kFewExperts;
  }
};

template <typename Own, typename Cub>
constexpr CtaWay Pair(const char* what, const char* own, const char* cub) {
  static_assert(Own::kThreads == Cub::kThreads && Own::kThreads <= kMostCtaThreads);
  return {what, own, cub, Own::kThreads, Run<Own>, Run<Cub>};
}

}  // namespace

const CtaWay kCtaWays[] = {
    Pair<OwnSums<int64_t, 3, kTileThreads>, CubSums<int64_t, 3, kTileThreads>>(
        "3 sums of 64 bits, 544 threads", "SumBefore", "BlockScan"),
    Pair<OwnSums<int, 2, 1024>, CubSums<int, 2, 1024>>("2 sums of 32 bits, 1024 threads",
                                                       "SumBefore", "BlockScan"),
    Pair<OwnSums<int, 1, 1024>, CubSums<int, 1, 1024>>("1 sum of 32 bits, 1024 threads",
                                                       "SumBefore", "BlockScan"),
    Pair<OwnPlaces, CubPlaces>("places in two waves, 544 threads", "PlaceInWave", "BlockScan"),
    Pair<OwnRanks<8>, CubRanks<8>>("8 misses in order", "RankOf", "BlockRadixSort"),
    Pair<OwnRanks<64>, CubRanks<64>>("64 misses in order", "RankOf", "BlockRadixSort"),
    Pair<OwnRanks<512>, CubRanks<512>>("512 misses in order", "RankOf", "BlockRadixSort"),
    Pair<OwnVictims<1>, CubVictims<1>>("1 of 512 leaves", "FindVictims", "BlockMergeSort"),
    Pair<OwnVictims<4>, CubVictims<4>>("4 of 512 leave", "FindVictims", "BlockMergeSort"),
    Pair<OwnVictims<16>, CubVictims<16>>("16 of 512 leave", "FindVictims", "BlockMergeSort"),
};
const int kNumCtaWays = static_cast<int>(sizeof(kCtaWays) / sizeof(kCtaWays[0]));

cudaError_t LaunchCubGroup(const CubGroup& g, void* scratch, size_t* bytes, cudaStream_t stream) {
  int bits = 1;
  while (1 << bits < g.experts) ++bits;
  const auto sort = [&](size_t* room) {
    return cub::DeviceRadixSort::SortPairs(scratch, *room, g.ids, g.sorted_ids, g.slots, g.sorted,
                                           g.pairs, 0, bits, stream);
  };
  const auto count = [&](size_t* room) {
    return cub::DeviceHistogram::HistogramEven(scratch, *room, g.ids, g.counts, g.experts + 1, 0,
                                               g.experts, g.pairs, stream);
  };
  const auto sum = [&](size_t* room) {
    return cub::DeviceScan::ExclusiveSum(scratch, *room, g.counts, g.firsts, g.experts, stream);
  };
  if (scratch == nullptr) {
    size_t sizes[3] = {};
    cudaError_t error = sort(&sizes[0]);
    if (error == cudaSuccess) error = count(&sizes[1]);
    if (error == cudaSuccess) error = sum(&sizes[2]);
    *bytes = std::max({sizes[0], sizes[1], sizes[2]});
    return error;
  }
  cudaError_t error = sort(bytes);
  if (error == cudaSuccess) error = count(bytes);
  return error == cudaSuccess ? sum(bytes) : error;
}

}  // namespace moert::test
