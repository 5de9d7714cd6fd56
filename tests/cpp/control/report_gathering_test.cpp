// What goes up at once, what is held, and for how long.
#include "lightcc/control/report_gathering.hpp"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "negotiation.hpp"

namespace lightcc {
namespace {

using std::chrono::milliseconds;

const TimePoint kStart{std::chrono::hours(1)};
constexpr std::uint32_t kLeader = 8;

/// A leader of ranks 8 to 11 with a leader 40 below it, who speaks for ranks 40 and 41.
class Gathering : public ::testing::Test {
 protected:
  static constexpr std::size_t kMembers = 6;

  void add(Report report, const std::string& key = "a", TimePoint now = kStart) {
    const std::size_t speaks_for = report.is_of_subtree() ? 2 : 1;
    gathering.add(std::move(report), key, speaks_for, kMembers, now, out);
  }
  std::vector<Report> take() { return std::exchange(out, {}); }

  ReportGathering gathering{kLeader};
  std::vector<Report> out;
};

const Report kOfChild{40, ReadySlot{3}, 41};

TEST_F(Gathering, what_all_say_goes_up_as_one_report_with_the_last_rank) {
  for (const std::uint32_t rank : {9U, 8U, 11U}) {
    add({rank, ReadySlot{3}});
  }
  add(kOfChild);
  EXPECT_TRUE(take().empty());
  EXPECT_TRUE(gathering.has_held());
  add({10, ReadySlot{3}});
  EXPECT_EQ(take(), (std::vector<Report>{{kLeader, ReadySlot{3}, 10}}));
  EXPECT_FALSE(gathering.has_held());
  EXPECT_TRUE(gathering.empty());
}

TEST_F(Gathering, the_last_rank_of_a_subtree_that_comes_last_is_named) {
  for (const std::uint32_t rank : {8U, 9U, 10U, 11U}) {
    add({rank, ReadySlot{3}});
  }
  add(kOfChild);
  EXPECT_EQ(take(), (std::vector<Report>{{kLeader, ReadySlot{3}, 41}}));
}

TEST_F(Gathering, inputs_go_up_with_the_one_report) {
  const auto input_of = [](std::int32_t rank) {
    return InlineInput{rank, Bytes(2, static_cast<std::byte>(rank))};
  };
  for (const std::int32_t rank : {9, 8, 11}) {
    add({static_cast<std::uint32_t>(rank), ReadySlot{3}, -1, {input_of(rank)}});
  }
  add({40, ReadySlot{3}, 41, {input_of(41), input_of(40)}});
  add({10, ReadySlot{3}});  // Was busy.
  const std::vector<Report> up = take();
  ASSERT_EQ(up.size(), 1U);
  EXPECT_EQ(up[0].last_rank, 10);
  EXPECT_EQ(up[0].inputs,
            (std::vector<InlineInput>{
                input_of(9), input_of(8), input_of(11), input_of(41), input_of(40)}));
}

TEST_F(Gathering, inputs_go_up_with_reports_that_do_not_become_whole) {
  const std::vector<InlineInput> inputs{{9, Bytes(3)}};
  add({9, ReadySlot{3}, -1, inputs});
  gathering.flush(out);
  EXPECT_EQ(take(), (std::vector<Report>{{9, ReadySlot{3}, -1, inputs}}));
}

TEST_F(Gathering, requests_in_full_are_gathered_too) {
  const Request request{testing::allreduce("a"), {}, {}};
  for (const std::uint32_t rank : {8U, 9U, 10U, 11U}) {
    add({rank, request});
  }
  add({40, request, 40});
  EXPECT_EQ(take(), (std::vector<Report>{{kLeader, request, 40}}));
}

TEST_F(Gathering, another_request_under_the_name_sends_all_up_as_it_came) {
  const Request request{testing::allreduce("a"), {}, {}};
  add({9, ReadySlot{3}});
  add(kOfChild);
  add({8, request});
  EXPECT_EQ(take(), (std::vector<Report>{{9, ReadySlot{3}}, kOfChild, {8, request}}));
  add({10, ReadySlot{3}});
  EXPECT_EQ(take().size(), 1U) << "the operation cannot become whole any more";
  add({11, ReadySlot{3}});
  EXPECT_EQ(take().size(), 1U);
  EXPECT_TRUE(gathering.empty());
}

TEST_F(Gathering, what_does_not_become_whole_goes_up_after_a_moment) {
  add({9, ReadySlot{3}});
  add({9, ReadySlot{4}}, "b", kStart + milliseconds(2));
  EXPECT_EQ(gathering.next_flush(), kStart + milliseconds(5));
  gathering.flush_due(kStart + milliseconds(4), out);
  EXPECT_TRUE(take().empty());
  gathering.flush_due(kStart + milliseconds(5), out);
  EXPECT_EQ(take(), (std::vector<Report>{{9, ReadySlot{3}}}));
  EXPECT_EQ(gathering.next_flush(), kStart + milliseconds(7));
  gathering.flush_due(kStart + milliseconds(7), out);
  EXPECT_EQ(take(), (std::vector<Report>{{9, ReadySlot{4}}}));
  EXPECT_FALSE(gathering.has_held());
  add({10, ReadySlot{3}});
  EXPECT_EQ(take(), (std::vector<Report>{{10, ReadySlot{3}}})) << "rank 0 hears of late ones";
}

TEST_F(Gathering, a_flush_leaves_nothing) {
  add({9, ReadySlot{3}});
  add({9, ReadySlot{4}}, "b");
  gathering.flush(out);
  EXPECT_EQ(take().size(), 2U);
  EXPECT_FALSE(gathering.has_held());
}

TEST_F(Gathering, what_is_over_is_forgotten) {
  add({9, ReadySlot{3}});
  gathering.forget("a");
  gathering.forget("never heard of");
  EXPECT_TRUE(gathering.empty());
  EXPECT_FALSE(gathering.has_held());
}

TEST_F(Gathering, who_speaks_for_all_is_not_held) {
  gathering.add({40, ReadySlot{3}, 41}, "a", 2, 2, kStart, out);
  EXPECT_EQ(take(), std::vector<Report>{kOfChild});
  EXPECT_TRUE(gathering.empty());
}

}  // namespace
}  // namespace lightcc
