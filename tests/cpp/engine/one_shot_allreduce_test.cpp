// What becomes of an operation that is held, on each of two ranks that share memory.
#include "lightcc/engine/one_shot_allreduce.hpp"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/combine_inline.hpp"
#include "lightcc/transport/shm/segment.hpp"

namespace lightcc::one_shot_allreduce_test {
namespace {

constexpr std::size_t kRanks = 2;
constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;  // With room for what lies before.

using Held = OneShotAllreduce::Held;

class Rank {
 public:
  Rank(int index, ShmSegment segment) {
    world_.topology.rank = index;
    world_.topology.size = kRanks;
    world_.hosts = {{0, 1}};
    world_.host_of = {0, 0};
    world_.host.ranks = {0, 1};
    world_.host.index = index;
    world_.host.segment = std::move(segment);
    one_shot_ = OneShotAllreduce::make(world_,
                                       FusionRule::kAuto,
                                       make_combine_inline(world_, knobs_, SimdLevel::kPlain),
                                       Clock::system(),
                                       table_);
  }

  /// Submits the sum of `value`, in place. Whether the operation is held, or done.
  bool take(float value, const std::string& name = "x") {
    data_ = {value, 2 * value};
    std::vector<Operation> operations(1);
    Operation& operation = operations.front();
    operation.name = name;
    operation.request.signature.shape = {2};
    operation.input = {.data = data_.data(), .dtype = DataType::kFloat32, .shape = {2}};
    operation.output = operation.input;
    auto handle = table_.add(std::move(operations), Grouping::kNone);
    EXPECT_TRUE(handle.ok()) << handle.status().message();
    handle_ = *handle;
    const auto taken = one_shot_->take(*table_.take_new().front());
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    return *taken;
  }
  Held advance(bool may_wait) {
    const auto held = one_shot_->advance(may_wait);
    EXPECT_TRUE(held.ok()) << held.status().message();
    return *held;
  }
  OneShotAllreduce& one_shot() { return *one_shot_; }
  bool is_done() const { return handle_->done; }
  const std::array<float, 2>& data() const { return data_; }

 private:
  Membership world_;
  Knobs knobs_;
  OperationTable table_;
  std::unique_ptr<OneShotAllreduce> one_shot_;
  std::array<float, 2> data_{};
  Handle handle_;
};

class OneShot : public ::testing::Test {
 protected:
  static ShmSegment made() {
    auto segment = ShmSegment::create(kSegmentBytes);
    EXPECT_TRUE(segment.ok()) << segment.status().message();
    return std::move(*segment);
  }
  static ShmSegment mapped(const ShmSegment& other) {
    auto segment = ShmSegment::map(UniqueFd(::dup(other.fd())), kSegmentBytes);
    EXPECT_TRUE(segment.ok()) << segment.status().message();
    return std::move(*segment);
  }
  OneShot() : segment_(made()), first_(0, mapped(segment_)), second_(1, mapped(segment_)) {}

  const std::array<float, 2> sum_{3.0F, 6.0F};  // From 1 and 2.
  ShmSegment segment_;
  Rank first_;
  Rank second_;
};

TEST_F(OneShot, the_last_that_comes_is_done_at_once) {
  ASSERT_TRUE(first_.take(1));
  EXPECT_FALSE(first_.is_done());
  EXPECT_EQ(first_.advance(true), Held::kWaits);
  ASSERT_TRUE(second_.take(2));
  EXPECT_TRUE(second_.is_done());
  EXPECT_FALSE(second_.one_shot().holds());
  EXPECT_EQ(first_.advance(true), Held::kDone);
  EXPECT_TRUE(first_.is_done());
  EXPECT_EQ(first_.data(), sum_);
  EXPECT_EQ(second_.data(), sum_);
  EXPECT_EQ(first_.one_shot().count(), 1U);
}

TEST_F(OneShot, a_rank_that_may_not_wait_reports) {
  ASSERT_TRUE(first_.take(1));
  EXPECT_EQ(first_.advance(false), Held::kToReport);
  first_.one_shot().release();
  EXPECT_FALSE(second_.take(2)) << "the round was given up";
  EXPECT_FALSE(first_.is_done());
  EXPECT_EQ(first_.data(), (std::array{1.0F, 2.0F}));
}

TEST_F(OneShot, a_rank_that_waits_in_vain_reports_after_a_while) {
  ASSERT_TRUE(first_.take(1));
  Held held = Held::kWaits;
  while (held == Held::kWaits) {
    held = first_.advance(true);
  }
  EXPECT_EQ(held, Held::kToReport);
}

TEST_F(OneShot, ranks_with_different_names_report) {
  ASSERT_TRUE(first_.take(1, "x"));
  EXPECT_FALSE(second_.take(2, "y"));
  EXPECT_EQ(first_.advance(true), Held::kToReport);
}

// The other rank has its result and may have left the world, which ends it here.
TEST_F(OneShot, what_ranks_have_met_for_is_done_though_the_world_ends) {
  ASSERT_TRUE(first_.take(1));
  ASSERT_TRUE(second_.take(2));
  first_.one_shot().finish();
  EXPECT_TRUE(first_.is_done());
  EXPECT_EQ(first_.data(), sum_);
  EXPECT_FALSE(first_.one_shot().holds());
}

TEST_F(OneShot, what_nobody_else_has_come_for_ends_with_the_world) {
  ASSERT_TRUE(first_.take(1));
  first_.one_shot().finish();
  EXPECT_FALSE(first_.is_done());
  EXPECT_FALSE(first_.one_shot().holds());
}

}  // namespace
}  // namespace lightcc::one_shot_allreduce_test
