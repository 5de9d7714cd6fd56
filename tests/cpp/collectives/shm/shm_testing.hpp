// What the tests of ShmGroup share: memory for a group, a loop that drives a Work, ranks as
// threads, and the sequential reference.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/shm/shm_group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/shm/doorbell.hpp"

#include "doubles/threads.hpp"

namespace lightcc::testing {

using Buffer = std::vector<std::byte>;

/// Zeroed, aligned memory of one process.
class GroupMemory {
 public:
  explicit GroupMemory(std::size_t bytes) : bytes_(bytes) {
    memory_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{4096}));
    std::memset(memory_, 0, bytes);
  }
  ~GroupMemory() { ::operator delete(memory_, std::align_val_t{4096}); }
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;
  std::span<std::byte> span() const { return {memory_, bytes_}; }

 private:
  std::byte* memory_;
  std::size_t bytes_;
};

/// Many rounds for few bytes: shares of one or two cache lines.
inline ShmGroupOptions tiny_options(int size, int depth) {
  return {.chunk_bytes = static_cast<std::size_t>(size) * 64, .depth = depth, .direct_bytes = 0};
}

inline std::vector<Doorbell> silent_bells(int size) {
  return std::vector<Doorbell>(static_cast<std::size_t>(size));
}

/// Drives `work` to its end, giving others the processor while nothing moves. kTimeout after two
/// minutes: nothing in these tests takes that long.
inline Status run(std::unique_ptr<Work> work) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < deadline) {
    auto progress = work->advance();
    if (!progress.ok()) {
      return progress.status();
    }
    if (*progress == Progress::kDone) {
      return Status::ok_status();
    }
    if (*progress == Progress::kIdle) {
      ::sched_yield();
    }
  }
  return make_error(ErrorCode::kTimeout, "the operation does not end");
}

inline void expect_done(std::unique_ptr<Work> work) {
  const Status status = run(std::move(work));
  EXPECT_TRUE(status.ok()) << status.message();
}

/// Runs `body` once for each rank of a fresh group, each in its own thread.
inline void on_threads(int size,
                       const ShmGroupOptions& options,
                       const std::function<void(Group&)>& body) {
  const GroupMemory memory(shm_group_bytes(size, options));
  run_on_threads(size, [&](int rank) {
    auto group = make_shm_group(memory.span(), rank, silent_bells(size), options);
    ASSERT_NE(group, nullptr);
    body(*group);
  });
}

/// Bytes that depend on `seed` and their place: the same on every rank that computes them.
inline Buffer pattern(std::size_t bytes, std::uint64_t seed) {
  Buffer buffer(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::byte& byte : buffer) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return buffer;
}

/// Elements of `dtype` whose products and sums over a few ranks are ordinary numbers but not exact
/// ones, so that the order of summation shows.
inline Buffer numbers(DataType dtype, std::size_t count, std::uint64_t seed) {
  const std::size_t width = element_size(dtype);
  Buffer buffer = pattern(count * width, seed);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* const at = buffer.data() + i * width;
    const auto raw = static_cast<unsigned>(at[0]);
    switch (dtype) {
      case DataType::kFloat32: {
        const float value = (static_cast<float>(raw) + 1.0F) / 77.0F;
        std::memcpy(at, &value, sizeof value);
        break;
      }
      case DataType::kFloat64: {
        const double value = (static_cast<double>(raw) + 1.0) / 77.0;
        std::memcpy(at, &value, sizeof value);
        break;
      }
      case DataType::kFloat16:  // Exponent bits 01111: 1.0 <= x < 2.
        at[1] = (at[1] & std::byte{0x03}) | std::byte{0x3c};
        break;
      case DataType::kBfloat16:
        at[0] |= std::byte{0x80};
        at[1] = std::byte{0x3f};
        break;
      case DataType::kBool:
        at[0] &= std::byte{1};
        break;
      default:
        break;
    }
  }
  return buffer;
}

/// All contributions combined at once, in member order, in plain arithmetic. Null: zeros.
inline Buffer reference(const std::vector<const Buffer*>& contributions,
                        std::size_t count,
                        const Reduction& reduction) {
  Buffer result(count * element_size(reduction.dtype));
  std::vector<ReduceSource> sources;
  sources.reserve(contributions.size());
  for (const Buffer* contribution : contributions) {
    sources.push_back({contribution == nullptr ? nullptr : contribution->data(), true});
  }
  if (count != 0) {
    reduce(sources, result.data(), nullptr, count, reduction, SimdLevel::kPlain);
  }
  return result;
}

}  // namespace lightcc::testing
