// Steps that the input describes must give the same lists and states at every SIMD level, and what
// the definition says: sorted by magnitude, ties to the lower index, nothing lost, nothing touched
// outside of allocations of exactly the right size.
//
// Input: dtype, flags (1 exact, 2 fp16, 4 momentum, 8 fresh state's k is all), offset of the shard
// in bytes, steps (a byte each), k (u16), then the steps' elements.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/topk/topk_list.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

namespace {

using lightcc::Bytes;
using lightcc::DataType;
using lightcc::HostResidual;
using lightcc::SimdLevel;
using lightcc::TopkListView;

[[noreturn]] void fail(const char* what, SimdLevel level) {
  std::fprintf(stderr, "%s at %s\n", what, lightcc::simd_level_name(level));
  std::abort();
}

struct Job {
  DataType dtype = DataType::kFloat32;
  lightcc::TopkRequest request;
  std::size_t offset_bytes = 0;
  std::size_t numel = 0;
  std::vector<std::span<const std::byte>> shards;
};

bool parse(std::span<const std::byte> bytes, Job& job) {
  constexpr std::array kTypes = {
      DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64};
  lightcc::ByteReader reader(bytes);
  job.dtype = kTypes[reader.number<std::uint8_t>() % 4];
  const unsigned flags = reader.number<std::uint8_t>();
  job.offset_bytes = reader.number<std::uint8_t>() % 64U;
  const std::size_t steps = reader.number<std::uint8_t>() % 4U + 1U;
  const std::size_t k = reader.number<std::uint16_t>();
  const std::size_t size = lightcc::element_size(job.dtype);
  job.numel = reader.remaining() / steps / size;
  if (!reader.ok() || job.numel == 0) {
    return false;
  }
  for (std::size_t step = 0; step < steps; ++step) {
    job.shards.push_back(reader.raw(job.numel * size));
  }
  job.request.k = (flags & 8U) != 0 ? job.numel : k % job.numel + 1;
  job.request.capacity = lightcc::topk_capacity(job.request.k, job.numel);
  job.request.exact = (flags & 1U) != 0;
  job.request.fp16 = (flags & 2U) != 0;
  job.request.momentum = (flags & 4U) != 0 ? 0.9 : 0.0;
  return true;
}

double get(DataType dtype, const std::byte* from, std::size_t i) {
  const auto at = [&](auto value) {
    std::memcpy(&value, from + i * sizeof(value), sizeof(value));
    return value;
  };
  switch (dtype) {
    case DataType::kFloat16:
      return static_cast<double>(lightcc::half_to_float(at(std::uint16_t{})));
    case DataType::kBfloat16:
      return static_cast<double>(lightcc::bfloat16_to_float(at(std::uint16_t{})));
    case DataType::kFloat64:
      return at(double{});
    default:
      return static_cast<double>(at(float{}));
  }
}

/// acc, in the arithmetic of the dtype.
template <typename Lane>
std::vector<double> accumulate(const Job& job, const HostResidual& state, const std::byte* shard) {
  std::vector<double> acc(job.numel);
  for (std::size_t i = 0; i < job.numel; ++i) {
    Lane u = static_cast<Lane>(get(job.dtype, shard, i));
    if (job.request.momentum != 0.0) {
      u = static_cast<Lane>(state.velocity_at(i)) * static_cast<Lane>(job.request.momentum) + u;
    }
    acc[i] = static_cast<double>(u + static_cast<Lane>(state.residual_at(i)));
  }
  return acc;
}

/// Which elements a list of `count` entries must have: the largest, ties to the lower index.
std::vector<std::size_t> largest(const std::vector<double>& acc, std::size_t count) {
  std::vector<std::size_t> order(acc.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const double first = std::abs(acc[a]);
    const double second = std::abs(acc[b]);
    return first != second ? first > second : a < b;
  });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

void check_list(const Job& job,
                const TopkListView& list,
                const std::vector<double>& acc,
                const HostResidual& after) {
  const std::vector<std::size_t> expected = largest(acc, list.count);
  std::size_t entry = 0;
  for (std::size_t block = 0; block < list.num_blocks; ++block) {
    for (std::size_t i = 0; i < list.block_count(block); ++i, ++entry) {
      const std::size_t index = list.index(block, entry);
      const double rest = after.residual_at(index);
      const double value = list.value(block, entry);
      if (index != expected[entry]) {
        fail("not the largest elements", job.request.level);
      }
      // Rounding float64 to float16 and values beyond 2^29 to saturated float16 may round the rest.
      if (std::abs(value + rest - acc[index]) > std::abs(acc[index]) * 0x1p-24) {
        fail("sent and residual are not the sum", job.request.level);
      }
    }
  }
  std::vector<bool> sent(job.numel);
  for (const std::size_t index : expected) {
    sent[index] = true;
  }
  for (std::size_t i = 0; i < job.numel; ++i) {
    if (!sent[i] && after.residual_at(i) != acc[i]) {
      fail("an element was lost", job.request.level);
    }
  }
}

void check_step(const Job& job,
                const lightcc::TopkOutcome& outcome,
                const Bytes& list,
                const std::vector<double>& acc,
                const HostResidual& after) {
  const bool finite = std::ranges::all_of(acc, [](double x) { return std::isfinite(x); });
  if (outcome.non_finite == finite) {
    fail("wrong about what is finite", job.request.level);
  }
  const auto view =
      lightcc::parse_list(list, job.numel, {.dtype = job.dtype, .fp16 = job.request.fp16});
  if (!view.ok()) {
    fail("the list is not valid", job.request.level);
  }
  if (!finite) {
    return;
  }
  const auto nonzero =
      static_cast<std::size_t>(std::ranges::count_if(acc, [](double x) { return x != 0.0; }));
  if (view->count > job.request.capacity || (job.request.exact && view->count != job.request.k) ||
      (3 * view->count < 2 * job.request.k && view->count < nonzero)) {
    fail("too many or too few elements", job.request.level);
  }
  check_list(job, *view, acc, after);
}

/// Lists and states of all steps, one after another.
Bytes run(Job job, SimdLevel level) {
  job.request.level = level;
  HostResidual state(job.dtype, job.numel);
  const lightcc::TopkFormat format{.dtype = job.dtype, .fp16 = job.request.fp16};
  const std::size_t room = lightcc::max_list_bytes(job.numel, job.request.capacity, format);
  Bytes all;
  for (const auto source : job.shards) {
    const auto shard = std::make_unique<std::byte[]>(job.offset_bytes + source.size());
    std::ranges::copy(source, shard.get() + job.offset_bytes);
    const auto out = std::make_unique<std::byte[]>(room);
    const std::byte* from = shard.get() + job.offset_bytes;
    const std::vector<double> acc = job.dtype == DataType::kFloat64
                                        ? accumulate<double>(job, state, from)
                                        : accumulate<float>(job, state, from);
    const auto outcome = state.compress(from, job.request, {out.get(), room});
    if (!outcome.ok()) {
      fail(outcome.status().message().c_str(), level);
    }
    state.commit();
    const Bytes list(out.get(), out.get() + outcome->bytes);
    check_step(job, *outcome, list, acc, state);
    all.insert(all.end(), list.begin(), list.end());
    if (!state.save(all).ok()) {
      fail("the state cannot be saved", level);
    }
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Job job;
  if (!parse(std::as_bytes(std::span(data, size)), job)) {
    return 0;
  }
  const Bytes plain = run(job, SimdLevel::kPlain);
  for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= lightcc::detect_simd_level() && run(job, level) != plain) {
      fail("differs from plain", level);
    }
  }
  return 0;
}
