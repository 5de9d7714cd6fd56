// What a Work of ShmGroup promises besides its result: it never blocks, never touches memory once
// it is dropped, refuses nonsense, and survives whatever stands in shared memory.

#include "lightcc/collectives/shm/shm_work.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/shm/shm_group.hpp"
#include "lightcc/collectives/shm/shm_layout.hpp"

#include "collectives/shm/shm_testing.hpp"

namespace lightcc::shm_work_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

/// Two members driven by hand in one thread.
class Two {
 public:
  explicit Two(const ShmGroupOptions& options = tiny_options(2, 2))
      : memory_(shm_group_bytes(2, options)),
        groups_{make_shm_group(memory_.span(), 0, silent_bells(2), options),
                make_shm_group(memory_.span(), 1, silent_bells(2), options)} {}
  Group& operator[](std::size_t rank) { return *groups_[rank]; }
  std::span<std::byte> memory() const { return memory_.span(); }

 private:
  GroupMemory memory_;
  std::array<std::unique_ptr<Group>, 2> groups_;
};

Progress must_advance(Work& work) {
  auto progress = work.advance();
  EXPECT_TRUE(progress.ok()) << progress.status().message();
  return progress.ok() ? *progress : Progress::kDone;
}

/// Until nothing moves any more.
Progress advance_to_a_stop(Work& work) {
  Progress progress = Progress::kMoved;
  while (progress == Progress::kMoved) {
    progress = must_advance(work);
  }
  return progress;
}

TEST(ShmWork, a_lone_member_is_idle_and_not_blocked) {
  Two two;
  Buffer data = numbers(DataType::kFloat32, 1000, 1);
  auto work = two[0].allreduce({{data.data(), data.data(), 1000}}, {});
  EXPECT_EQ(advance_to_a_stop(*work), Progress::kIdle);
  EXPECT_EQ(must_advance(*work), Progress::kIdle);
}

TEST(ShmWork, a_sender_is_done_once_the_window_holds_the_rest) {
  Two two;
  const Buffer out = pattern(128, 1);
  auto send = two[0].send(out.data(), out.size(), 1);
  EXPECT_EQ(must_advance(*send), Progress::kDone);
  Buffer in(128);
  EXPECT_EQ(must_advance(*two[1].recv(in.data(), in.size(), 0)), Progress::kDone);
  EXPECT_EQ(in, out);
}

TEST(ShmWork, barrier_waits_for_everybody) {
  Two two;
  auto first = two[0].barrier();
  EXPECT_EQ(advance_to_a_stop(*first), Progress::kIdle);
  auto second = two[1].barrier();
  EXPECT_EQ(must_advance(*second), Progress::kDone);
  EXPECT_EQ(must_advance(*first), Progress::kDone);
}

TEST(ShmWork, one_advance_of_a_long_operation_does_a_bounded_part) {
  const ShmGroupOptions options = tiny_options(1, 2);
  const GroupMemory memory(shm_group_bytes(1, options));
  auto group = make_shm_group(memory.span(), 0, silent_bells(1), options);
  Buffer in(64 * 1000);
  Buffer out(in.size());
  auto work = group->allreduce({{in.data(), out.data(), in.size() / 4}}, {});
  EXPECT_EQ(must_advance(*work), Progress::kMoved);
  EXPECT_EQ(advance_to_a_stop(*work), Progress::kDone);
}

/// Starts `start` on both members, drops member 0's Work after `steps` steps, and checks that
/// nothing writes its tensor from then on.
void drop_after(int steps, const ShmGroupOptions& options) {
  constexpr std::size_t kCount = 4000;
  Two two(options);
  Buffer dropped = numbers(DataType::kFloat32, kCount, 1);
  Buffer kept = numbers(DataType::kFloat32, kCount, 2);
  auto first = two[0].allreduce({{dropped.data(), dropped.data(), kCount}}, {});
  auto second = two[1].allreduce({{kept.data(), kept.data(), kCount}}, {});
  for (int step = 0; step < steps; ++step) {
    ASSERT_NE(must_advance(*first), Progress::kDone);
    ASSERT_NE(must_advance(*second), Progress::kDone);
  }
  first.reset();
  const Buffer marker(dropped.size(), std::byte{0xee});
  dropped = marker;
  for (int i = 0; i < 100; ++i) {
    (void)must_advance(*second);
  }
  EXPECT_EQ(dropped, marker);
  const Status later = testing::run(two[0].barrier());
  EXPECT_EQ(later.code(), ErrorCode::kInternal);
  EXPECT_NE(later.message().find("dropped"), std::string::npos);
}

TEST(ShmWork, a_dropped_work_never_writes_again_and_ends_the_group) {
  for (const int steps : {0, 1, 2, 3, 5}) {
    drop_after(steps, tiny_options(2, 2));
    ShmGroupOptions direct = tiny_options(2, 2);
    direct.direct_bytes = 1 << 20;
    drop_after(steps, direct);
  }
}

TEST(ShmWork, a_work_may_outlive_its_group) {
  const ShmGroupOptions options = tiny_options(2, 2);
  const GroupMemory memory(shm_group_bytes(2, options));
  auto group = make_shm_group(memory.span(), 0, silent_bells(2), options);
  auto work = group->barrier();
  (void)must_advance(*work);
  group.reset();
  work.reset();
}

TEST(ShmWork, two_works_at_once_are_refused) {
  Two two;
  auto first = two[0].barrier();
  auto second = two[0].barrier();
  (void)must_advance(*first);
  EXPECT_EQ(second->advance().status().code(), ErrorCode::kInternal);
}

TEST(ShmWork, a_finished_work_is_not_advanced_again) {
  Two two;
  auto first = two[0].broadcast(nullptr, 0, 0);
  EXPECT_EQ(must_advance(*first), Progress::kDone);
  EXPECT_EQ(first->advance().status().code(), ErrorCode::kInternal);
}

TEST(ShmWork, nonsense_is_refused_and_leaves_the_group_usable) {
  Two two;
  std::byte data[8] = {};
  const std::size_t huge = SIZE_MAX / 2;
  std::vector<std::unique_ptr<Work>> works;
  works.push_back(two[0].send(data, 8, 0));
  works.push_back(two[0].send(data, 8, 2));
  works.push_back(two[0].recv(data, 8, -1));
  works.push_back(two[0].broadcast(data, 8, 2));
  works.push_back(two[0].broadcast(data, SIZE_MAX, 0));
  works.push_back(two[0].allgather(data, data, {8}));
  works.push_back(two[0].allgather(data, data, {huge, huge}));
  works.push_back(two[0].alltoall(data, {1, 2}, data, {2, 1}));
  works.push_back(two[0].alltoall(data, {1}, data, {1, 1}));
  works.push_back(two[0].reduce_scatter(data, data, {1, 1, 1}, {}));
  works.push_back(two[0].reduce_scatter(data, data, {huge, 1}, {}));
  works.push_back(two[0].allreduce({{data, data, huge}, {data, data, huge}}, {}));
  works.push_back(two[0].allreduce({{data, data, 2}}, {.op = ReduceOp::kAverage}));
  works.push_back(two[0].allreduce({{data, data, 2}}, {.dtype = DataType::kBool}));
  works.push_back(two[0].allreduce({{data, data, 2}}, {.dtype = static_cast<DataType>(77)}));
  for (std::size_t i = 0; i < works.size(); ++i) {
    EXPECT_EQ(works[i]->advance().status().code(), ErrorCode::kInvalidArgument) << i;
  }
  works.clear();
  EXPECT_EQ(must_advance(*two[0].send(data, 8, 1)), Progress::kDone);
}

TEST(ShmWork, unsuitable_memory_gives_no_group) {
  const ShmGroupOptions options = tiny_options(2, 2);
  const std::size_t bytes = shm_group_bytes(2, options);
  const GroupMemory memory(bytes + 128);
  EXPECT_EQ(make_shm_group(memory.span().first(bytes - 1), 0, silent_bells(2), options), nullptr);
  EXPECT_EQ(make_shm_group(memory.span().subspan(64), 0, silent_bells(2), options), nullptr);
  EXPECT_EQ(make_shm_group(memory.span(), 2, silent_bells(2), options), nullptr);
  EXPECT_EQ(make_shm_group(memory.span(), -1, silent_bells(2), options), nullptr);
  EXPECT_NE(make_shm_group(memory.span(), 1, silent_bells(2), options), nullptr);
}

TEST(ShmWork, options_out_of_range_are_moved_into_it) {
  for (const int depth : {-5, 0, 100'000}) {
    for (const std::size_t chunk : {std::size_t{0}, std::size_t{1}, SIZE_MAX}) {
      const ShmLayout layout(3, {.chunk_bytes = chunk, .depth = depth, .direct_bytes = 0});
      EXPECT_GE(layout.depth, 1U);
      EXPECT_LE(layout.depth, 64U);
      EXPECT_GE(layout.slot_bytes, 64U);
      EXPECT_EQ(layout.slot_bytes % 64, 0U);
      EXPECT_LE(layout.slot_bytes, std::size_t{1} << 30);
    }
  }
}

TEST(ShmWork, no_two_regions_of_the_layout_overlap) {
  for (const int size : {1, 2, 3, 64}) {
    const ShmLayout layout(size, tiny_options(size, 3));
    std::vector<std::pair<std::size_t, std::size_t>> regions;
    for (std::size_t i = 0; i < layout.size; ++i) {
      regions.emplace_back(layout.member_line(i), kShmLine);
      for (std::size_t slot = 0; slot < layout.depth; ++slot) {
        regions.emplace_back(layout.result_slot(i, slot), layout.slot_bytes);
      }
      for (std::size_t j = 0; j < layout.size; ++j) {
        regions.emplace_back(layout.pair_line(i, j), kShmLine);
        if (i != j) {
          regions.emplace_back(layout.scatter_window(i, j), layout.depth * layout.slot_bytes);
        }
      }
    }
    std::sort(regions.begin(), regions.end());
    for (std::size_t k = 1; k < regions.size(); ++k) {
      ASSERT_LE(regions[k - 1].first + regions[k - 1].second, regions[k].first);
    }
    ASSERT_LE(regions.back().first + regions.back().second, layout.total_bytes());
  }
}

TEST(ShmWork, groups_may_lie_one_after_another_in_one_segment) {
  for (const int size : {1, 3, 5, 7}) {
    for (const int depth : {1, 3}) {
      const ShmGroupOptions options = tiny_options(size, depth);
      const std::size_t bytes = shm_group_bytes(size, options);
      const GroupMemory memory(2 * bytes);
      EXPECT_NE(make_shm_group(memory.span().subspan(bytes), 0, silent_bells(size), options),
                nullptr);
    }
  }
}

TEST(ShmWork, garbage_in_shared_memory_never_leads_outside_it) {
  // Meant for AddressSanitizer: memory and tensors have their exact sizes.
  constexpr std::size_t kCount = 700;
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Two two(tiny_options(2, 3));
    const std::size_t words = ShmLayout(2, tiny_options(2, 3)).pair_line(2, 0) / 8;
    Buffer data(kCount * 4);
    Buffer other(kCount * 4);
    std::unique_ptr<Work> works[] = {
        two[0].allreduce({{data.data(), data.data(), kCount}}, {}),
        two[0].allgather(data.data(), other.data(), {300, 2500}),
        two[0].alltoall(data.data(), {9, 900}, other.data(), {9, 1800}),
        two[0].broadcast(data.data(), 2800, 1)};
    auto& work = works[static_cast<std::size_t>(round) % 4];
    for (int step = 0; step < 50; ++step) {
      const std::size_t at = random() % words * 8;
      const std::uint64_t value = random() >> (random() % 64);
      std::memcpy(two.memory().data() + at, &value, sizeof value);
      if (must_advance(*work) == Progress::kDone) {
        break;
      }
    }
  }
}

TEST(ShmWork, more_than_two_to_the_31_elements) {
  constexpr std::size_t kMany = (std::size_t{1} << 31) + 5;
  on_threads(2, default_shm_options(2), [&](Group& group) {
    // The long tensor is one that both ranks joined without: no memory behind it.
    Buffer data = pattern(100, static_cast<std::uint64_t>(group.rank()));
    expect_done(group.allreduce({{nullptr, nullptr, kMany}, {data.data(), data.data(), 100}},
                                {.dtype = DataType::kUint8}));
    const Buffer first = pattern(100, 0);
    const Buffer second = pattern(100, 1);
    ASSERT_EQ(data, testing::reference({&first, &second}, 100, {.dtype = DataType::kUint8}));
  });
}

}  // namespace
}  // namespace lightcc::shm_work_test
