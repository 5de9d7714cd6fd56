// How fast reduce() is, per type, level, number of sources and place in the memory hierarchy,
// against memcpy and a plain loop of the same run. Every result is checked. Prints a table; asserts
// no time.
//
// Rates count each byte that is read and written once: (sources + 1) * size per call, 2 * size for
// memcpy. In place (out == source 0), as in an all-reduce. Each figure is the best of a number of
// rounds, with the contenders in turns.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"

namespace {

using lightcc::DataType;
using lightcc::ReduceSource;
using lightcc::Reduction;
using lightcc::SimdLevel;

constexpr int kRounds = 7;
constexpr std::size_t kMaxSources = 4;

std::size_t iterations(std::size_t bytes) {
  return std::max<std::size_t>((std::size_t{1} << 27) / bytes, 1);
}

/// Seconds per call, the best of kRounds, for each contender.
std::vector<double> best_times(const std::vector<std::function<void()>>& contenders,
                               std::size_t repeats) {
  std::vector<double> best(contenders.size(), 1e9);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      contenders[c]();  // Its own warm-up: the one before left other things in the caches.
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < repeats; ++i) {
        contenders[c]();
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best[c] = std::min(best[c], took.count() / static_cast<double>(repeats));
    }
  }
  return best;
}

void fill(DataType dtype, std::byte* to, std::size_t count, unsigned value) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto put = [&](auto element) {
      std::memcpy(to + i * sizeof(element), &element, sizeof(element));
    };
    switch (dtype) {
      case DataType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DataType::kFloat64:
        put(static_cast<double>(value));
        break;
      case DataType::kFloat16:
        put(lightcc::float_to_half(static_cast<float>(value)));
        break;
      case DataType::kBfloat16:
        put(lightcc::float_to_bfloat16(static_cast<float>(value)));
        break;
      case DataType::kInt32:
        put(static_cast<std::int32_t>(value));
        break;
      default:
        put(static_cast<std::int64_t>(value));
        break;
    }
  }
}

void plain_loop(float* __restrict c, const float* __restrict a, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    c[i] += a[i];
  }
}

struct Buffers {
  explicit Buffers(std::size_t bytes) : storage(kMaxSources + 1) {
    for (auto& buffer : storage) {
      buffer.resize(bytes + 64);
    }
  }
  std::byte* at(std::size_t k) { return storage[k].data(); }
  std::vector<std::vector<std::byte>> storage;
};

/// Returns false if a result is wrong.
bool check(
    DataType dtype, Buffers& buffers, std::size_t bytes, std::size_t num_sources, SimdLevel level) {
  const std::size_t count = bytes / lightcc::element_size(dtype);
  unsigned total = 0;
  std::vector<ReduceSource> sources;
  for (std::size_t k = 0; k < num_sources; ++k) {
    fill(dtype, buffers.at(k), count, static_cast<unsigned>(k) + 1);
    sources.push_back({buffers.at(k)});
    total += static_cast<unsigned>(k) + 1;
  }
  lightcc::reduce(sources, buffers.at(0), nullptr, count, Reduction{.dtype = dtype}, level);
  fill(dtype, buffers.at(kMaxSources), count, total);
  const bool right = std::memcmp(buffers.at(0), buffers.at(kMaxSources), bytes) == 0;
  for (std::size_t k = 0; k < num_sources; ++k) {
    fill(dtype,
         buffers.at(k),
         count,
         0);  // Zeros: sums stay in range however often they are repeated.
  }
  return right;
}

bool measure(DataType dtype, std::size_t bytes, std::size_t num_sources) {
  Buffers buffers(bytes);
  const std::size_t count = bytes / lightcc::element_size(dtype);
  std::vector<ReduceSource> sources;
  for (std::size_t k = 0; k < num_sources; ++k) {
    sources.push_back({buffers.at(k)});
  }
  std::vector<std::string> names{"memcpy", "loop f32"};
  std::vector<double> moved{2.0, 3.0};
  std::vector<std::function<void()>> contenders{
      [&] { std::memcpy(buffers.at(1), buffers.at(0), bytes); },
      [&] {
        plain_loop(reinterpret_cast<float*>(buffers.at(0)),
                   reinterpret_cast<const float*>(buffers.at(1)),
                   bytes / sizeof(float));
      }};
  for (const SimdLevel level : {SimdLevel::kPlain, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level > lightcc::detect_simd_level()) {
      continue;
    }
    if (!check(dtype, buffers, bytes, num_sources, level)) {
      std::printf("WRONG RESULT: %s at %s\n",
                  lightcc::data_type_name(dtype),
                  lightcc::simd_level_name(level));
      return false;
    }
    names.emplace_back(lightcc::simd_level_name(level));
    moved.push_back(static_cast<double>(num_sources) + 1.0);
    contenders.emplace_back([&, level] {
      lightcc::reduce(sources, buffers.at(0), nullptr, count, Reduction{.dtype = dtype}, level);
    });
  }
  const std::vector<double> times = best_times(contenders, iterations(bytes * num_sources));
  std::printf("%-9s %9zu B %zu sources:", lightcc::data_type_name(dtype), bytes, num_sources);
  std::vector<double> rates;
  for (std::size_t c = 0; c < times.size(); ++c) {
    rates.push_back(moved[c] * static_cast<double>(bytes) / times[c] * 1e-9);
    std::printf("  %s %6.1f", names[c].c_str(), rates[c]);
  }
  std::printf(" GB/s; best level/memcpy %.2f, /loop %.2f\n",
              rates.back() / rates[0],
              rates.back() / rates[1]);
  return true;
}

}  // namespace

int main() {
  bool right = true;
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{64} << 20}) {
    for (const DataType dtype : {DataType::kFloat32,
                                 DataType::kFloat64,
                                 DataType::kFloat16,
                                 DataType::kBfloat16,
                                 DataType::kInt32,
                                 DataType::kInt64}) {
      for (const std::size_t num_sources : {std::size_t{2}, std::size_t{3}, std::size_t{4}}) {
        right = measure(dtype, bytes, num_sources) && right;
      }
    }
  }
  return right ? 0 : 1;
}
