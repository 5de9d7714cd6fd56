// Where timelines are written.
#include "lightcc/engine/timeline/timeline.hpp"

#include <gtest/gtest.h>

namespace lightcc::timeline_test {
namespace {

TEST(TimelinePath, other_ranks_write_beside_rank_0) {
  EXPECT_EQ(timeline_path("/a.b/trace.json", 0), "/a.b/trace.json");
  EXPECT_EQ(timeline_path("/a.b/trace.json", 12), "/a.b/trace.rank12.json");
  EXPECT_EQ(timeline_path("/a.b/trace", 1), "/a.b/trace.rank1");
  EXPECT_EQ(timeline_path(".hidden", 1), ".hidden.rank1");
}

}  // namespace
}  // namespace lightcc::timeline_test
