// What counts as finished of buckets that are done before their device has finished them.
#include "lightcc/engine/unfinished.hpp"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"

namespace lightcc::unfinished_test {
namespace {

/// Does what a test says.
class ToldWork final : public Work {
 public:
  explicit ToldWork(const Result<Progress>& next) : next_(next) {}
  Result<Progress> advance() override { return next_; }

 private:
  const Result<Progress>& next_;
};

class Unfinished : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const Result<Progress>& next : next_) {
      UnfinishedBuckets::Entry entry;
      entry.work = std::make_unique<ToldWork>(next);
      buckets_.add(std::move(entry));
    }
  }
  std::size_t finished() {
    std::vector<UnfinishedBuckets::Entry> entries;
    EXPECT_TRUE(buckets_.advance(entries).ok());
    return entries.size();
  }

  std::vector<Result<Progress>> next_{Progress::kIdle, Progress::kIdle, Progress::kIdle};
  UnfinishedBuckets buckets_;
};

TEST_F(Unfinished, the_first_ones_are_finished_when_each_of_them_is) {
  EXPECT_EQ(buckets_.added(), 3U);
  EXPECT_TRUE(buckets_.has_finished(0));
  EXPECT_EQ(finished(), 0U);
  next_[1] = Progress::kDone;
  EXPECT_EQ(finished(), 1U);
  EXPECT_FALSE(buckets_.has_finished(1));
  next_[0] = Progress::kDone;
  EXPECT_EQ(finished(), 1U);
  EXPECT_TRUE(buckets_.has_finished(2));
  EXPECT_FALSE(buckets_.has_finished(3));
  next_[2] = Progress::kDone;
  EXPECT_EQ(finished(), 1U);
  EXPECT_TRUE(buckets_.has_finished(3));
  EXPECT_TRUE(buckets_.empty());
}

TEST_F(Unfinished, an_error_is_told_and_what_is_dropped_never_counts) {
  next_[0] = Progress::kDone;
  next_[1] = Status(ErrorCode::kSystem, "broken");
  std::vector<UnfinishedBuckets::Entry> entries;
  EXPECT_EQ(buckets_.advance(entries).message(), "broken");
  EXPECT_EQ(entries.size(), 1U);
  EXPECT_EQ(buckets_.size(), 2U);
  buckets_.drop_all();
  EXPECT_TRUE(buckets_.empty());
  EXPECT_TRUE(buckets_.has_finished(1));
  EXPECT_FALSE(buckets_.has_finished(2));
}

}  // namespace
}  // namespace lightcc::unfinished_test
