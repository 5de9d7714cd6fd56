// What a Store promises.
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"

#include "doubles/local_store.hpp"
#include "doubles/shorthand.hpp"
#include "doubles/threads.hpp"

namespace lightcc::store_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class StoreTest : public testing::Test {
 protected:
  const std::shared_ptr<Store> served_ = make_local_store();
  Store& store_ = *served_;
};

TEST_F(StoreTest, get_returns_what_set_stored) {
  ASSERT_TRUE(store_.set("a", bytes_of("one"), soon()).ok());
  EXPECT_EQ(store_.get("a", soon()).value(), bytes_of("one"));
  ASSERT_TRUE(store_.set("a", bytes_of("two"), soon()).ok());
  EXPECT_EQ(store_.get("a", soon()).value(), bytes_of("two"));
  ASSERT_TRUE(store_.set("", {}, soon()).ok());
  EXPECT_EQ(store_.get("", soon()).value(), Bytes());
}

TEST_F(StoreTest, get_waits_for_set) {
  std::thread setter;
  Result<Bytes> value = Status(ErrorCode::kInternal, "not run");
  std::thread getter([&] { value = store_.get("late", soon()); });
  setter = std::thread([&] {
    // Its own key first, so that the getter most likely waits; correct either way.
    EXPECT_FALSE(store_.get("never", in(milliseconds(50))).ok());
    EXPECT_TRUE(store_.set("late", bytes_of("here"), soon()).ok());
  });
  getter.join();
  setter.join();
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(value.value(), bytes_of("here"));
}

TEST_F(StoreTest, a_timeout_names_the_key) {
  const auto value = store_.get("world/7/rank/3", in(seconds(1)));
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().code(), ErrorCode::kTimeout);
  EXPECT_NE(value.status().message().find("'world/7/rank/3' was not set"), std::string::npos)
      << value.status().message();
  // The store works on.
  ASSERT_TRUE(store_.set("world/7/rank/3", bytes_of("x"), soon()).ok());
  EXPECT_EQ(store_.get("world/7/rank/3", soon()).value(), bytes_of("x"));
}

TEST_F(StoreTest, remove_prefix_removes_the_prefix_only) {
  for (const char* key : {"a/1", "a/2", "b/1"}) {
    ASSERT_TRUE(store_.set(key, bytes_of(key), soon()).ok());
  }
  ASSERT_TRUE(store_.remove_prefix("a/", soon()).ok());
  EXPECT_EQ(store_.get("b/1", soon()).value(), bytes_of("b/1"));
  EXPECT_EQ(store_.get("a/1", in(milliseconds(20))).status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(store_.get("a/2", in(milliseconds(20))).status().code(), ErrorCode::kTimeout);
}

TEST_F(StoreTest, the_largest_key_and_value_pass) {
  const std::string key(256, 'k');
  Bytes value(std::size_t{16} << 20);
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  ASSERT_TRUE(store_.set(key, value, soon()).ok());
  const auto got = store_.get(key, soon());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_TRUE(got.value() == value);
}

TEST_F(StoreTest, beyond_the_limits_it_is_the_callers_fault) {
  EXPECT_EQ(store_.set(std::string(257, 'k'), {}, soon()).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_.set("k", Bytes((std::size_t{16} << 20) + 1), soon()).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(StoreTest, compare_and_set_sets_what_is_as_expected) {
  EXPECT_EQ(store_.compare_and_set("k", bytes_of("x"), bytes_of("a"), soon()).value(),
            std::nullopt);
  EXPECT_EQ(store_.compare_and_set("k", std::nullopt, bytes_of("a"), soon()).value(),
            bytes_of("a"));
  EXPECT_EQ(store_.compare_and_set("k", std::nullopt, bytes_of("b"), soon()).value(),
            bytes_of("a"));
  EXPECT_EQ(store_.compare_and_set("k", bytes_of("x"), bytes_of("b"), soon()).value(),
            bytes_of("a"));
  EXPECT_EQ(store_.compare_and_set("k", bytes_of("a"), bytes_of("b"), soon()).value(),
            bytes_of("b"));
  EXPECT_EQ(store_.get("k", soon()).value(), bytes_of("b"));
}

TEST_F(StoreTest, of_several_compare_and_sets_one_succeeds) {
  constexpr int kThreads = 8;
  std::atomic<int> succeeded = 0;
  run_on_threads(kThreads, [&](int i) {
    const Bytes own = bytes_of(std::to_string(i));
    const auto now = store_.compare_and_set("leader", std::nullopt, own, soon());
    EXPECT_TRUE(now.ok()) << now.status().message();
    succeeded += now.ok() && now.value() == own ? 1 : 0;
  });
  EXPECT_EQ(succeeded, 1);
}

TEST_F(StoreTest, compare_and_set_has_small_values_only) {
  const Bytes large((std::size_t{64} << 10) + 1);
  for (const auto& result : {store_.compare_and_set("k", std::nullopt, large, soon()),
                             store_.compare_and_set("k", large, {}, soon())}) {
    EXPECT_EQ(result.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find("65537 bytes"), std::string::npos);
  }
}

using Entries = std::vector<std::pair<std::string, Bytes>>;

TEST_F(StoreTest, a_watch_sees_what_is_there_and_then_what_changes) {
  ASSERT_TRUE(store_.set("p/1", bytes_of("one"), soon()).ok());
  ASSERT_TRUE(store_.set("q", bytes_of("else"), soon()).ok());
  auto view = store_.watch("p/", 0, soon());
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->entries, (Entries{{"p/1", bytes_of("one")}}));
  EXPECT_EQ(store_.watch("p/", view->state, in(milliseconds(20))).status().code(),
            ErrorCode::kTimeout);

  Result<StoreView> next = Status(ErrorCode::kInternal, "not run");
  std::thread watcher([&, state = view->state] { next = store_.watch("p/", state, soon()); });
  EXPECT_FALSE(store_.get("never", in(milliseconds(50))).ok());  // So that it most likely waits.
  ASSERT_TRUE(store_.set("q", bytes_of("not meant"), soon()).ok());
  ASSERT_TRUE(store_.set("p/2", bytes_of("two"), soon()).ok());
  watcher.join();
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_EQ(next->entries, (Entries{{"p/1", bytes_of("one")}, {"p/2", bytes_of("two")}}));

  ASSERT_TRUE(store_.remove_prefix("p/1", soon()).ok());
  view = store_.watch("p/", next->state, soon());
  EXPECT_EQ(view->entries, (Entries{{"p/2", bytes_of("two")}}));
  // Set to the same value is set, too.
  ASSERT_TRUE(store_.set("p/2", bytes_of("two"), soon()).ok());
  EXPECT_NE(store_.watch("p/", view->state, soon())->state, view->state);
}

TEST_F(StoreTest, a_removal_and_a_compare_and_set_wake_a_watch) {
  ASSERT_TRUE(store_.set("p/1", {}, soon()).ok());
  for (const bool removes : {false, true}) {
    const auto before = store_.watch("p/", 0, soon());
    Result<StoreView> next = Status(ErrorCode::kInternal, "not run");
    std::thread watcher([&] { next = store_.watch("p/", before->state, soon()); });
    EXPECT_FALSE(store_.get("never", in(milliseconds(50))).ok());
    if (removes) {
      EXPECT_TRUE(store_.remove_prefix("", soon()).ok());
    } else {
      EXPECT_TRUE(store_.compare_and_set("p/1", Bytes(), bytes_of("x"), soon()).ok());
    }
    watcher.join();
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ(next->entries.size(), removes ? 0U : 1U);
  }
}

TEST_F(StoreTest, a_watch_of_too_much_is_refused) {
  ASSERT_TRUE(store_.set("p/1", Bytes(std::size_t{1} << 20), soon()).ok());
  const auto view = store_.watch("p/", 0, soon());
  EXPECT_EQ(view.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(view.status().message().find("below 'p/' have more than"), std::string::npos)
      << view.status().message();
}

TEST_F(StoreTest, many_threads_meet_through_one_store) {
  constexpr int kThreads = 16;
  std::vector<int> sums(kThreads);
  run_on_threads(kThreads, [&](int rank) {
    int& sum = sums[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(
        store_.set("rank/" + std::to_string(rank), Bytes(static_cast<std::size_t>(rank)), soon())
            .ok());
    for (int peer = 0; peer < kThreads; ++peer) {
      const auto value = store_.get("rank/" + std::to_string(peer), soon());
      EXPECT_TRUE(value.ok()) << value.status().message();
      sum += value.ok() ? static_cast<int>(value.value().size()) : 0;
    }
  });
  EXPECT_EQ(sums, std::vector<int>(kThreads, kThreads * (kThreads - 1) / 2));
}

/// Says that rank `rank` went away.
Status last_will_of(int rank) {
  return {ErrorCode::kPeerFailed, "rank " + std::to_string(rank) + " went away", rank};
}

class RoundTest : public StoreTest {
 protected:
  std::unique_ptr<RendezvousRound> join(int rank, const std::string& prefix = "world/") {
    auto round = store_.join(prefix, last_will_of(rank), soon());
    EXPECT_TRUE(round.ok()) << round.status().message();
    return round.ok() ? std::move(round).value() : nullptr;
  }
};

void expect_same(const Status& seen, const Status& expected) {
  EXPECT_EQ(seen.code(), expected.code());
  EXPECT_EQ(seen.message(), expected.message());
  EXPECT_EQ(seen.rank(), expected.rank());
}

TEST_F(RoundTest, those_who_joined_share_keys_with_all) {
  const auto first = join(0);
  const auto second = join(1);
  ASSERT_TRUE(first->set("world/a", bytes_of("one"), soon()).ok());
  EXPECT_EQ(second->get("world/a", soon()).value(), bytes_of("one"));
  EXPECT_EQ(store_.get("world/a", soon()).value(), bytes_of("one"));
  EXPECT_TRUE(first->failure({}).ok());
}

TEST_F(RoundTest, a_gather_gives_all_shares_to_all) {
  std::vector<Bytes> got(3);
  run_on_threads(std::uint32_t{3}, [&](std::uint32_t rank) {
    const auto round = join(static_cast<int>(rank));
    auto all = round->gather("world/g", rank, 3, Bytes(rank), soon());
    ASSERT_TRUE(all.ok()) << all.status().message();
    got[rank] = std::move(all).value();
    EXPECT_TRUE(round->leave(false, soon()).ok());
  });
  EXPECT_EQ(
      got[0],
      (Bytes{std::byte{}, std::byte{1}, std::byte{}, std::byte{2}, std::byte{}, std::byte{}}));
  EXPECT_EQ(got[1], got[0]);
  EXPECT_EQ(got[2], got[0]);
}

TEST_F(RoundTest, a_gather_without_one_share_ends_with_the_round_or_in_time) {
  const auto first = join(0);
  auto second = join(1);
  const TimePoint at_once = Clock::system().now() + std::chrono::milliseconds(20);
  EXPECT_EQ(first->gather("world/g", 0, 3, {}, at_once).status().code(), ErrorCode::kTimeout);
  const auto there = store_.watch("world/g/", 0, soon());
  ASSERT_TRUE(there.ok()) << there.status().message();
  EXPECT_EQ(there->entries.size(), 1U);
  Result<Bytes> value = Status(ErrorCode::kInternal, "not run");
  std::thread waits([&] { value = second->gather("world/g", 1, 3, {}, soon()); });
  join(2).reset();
  waits.join();
  expect_same(value.status(), last_will_of(2));
  const auto third = join(3, "other/");
  EXPECT_EQ(third->gather("other/g", 0, 2, Bytes(kMaxStoreShareBytes + 1), soon()).status().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(RoundTest, who_goes_away_is_heard_of_wherever_others_wait) {
  auto gone = join(2);
  const auto idle = join(0);
  const auto getter = join(1);
  const auto elsewhere = join(3, "other/");
  Result<Bytes> value = Status(ErrorCode::kInternal, "not run");
  std::thread waits([&] { value = getter->get("world/never", soon()); });
  gone.reset();
  waits.join();
  expect_same(value.status(), last_will_of(2));
  expect_same(idle->failure(soon()), last_will_of(2));
  expect_same(idle->get("world/never", soon()).status(), last_will_of(2));
  expect_same(idle->set("world/a", {}, soon()), last_will_of(2));
  EXPECT_TRUE(elsewhere->failure({}).ok());
}

TEST_F(RoundTest, news_wakes_who_sleeps_on_the_descriptor) {
  const auto idle = join(0);
  pollfd entry{idle->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  join(1).reset();
  EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
  expect_same(idle->failure(soon()), last_will_of(1));
}

TEST_F(RoundTest, the_first_reason_counts_for_all) {
  const auto first = join(0);
  const auto second = join(1);
  const Status why(ErrorCode::kSystem, "rank 1: too many open files", 1);
  expect_same(second->fail(why, soon()), why);
  expect_same(first->fail(Status(ErrorCode::kPeerFailed, "rank 1 hung up", 1), soon()), why);
  expect_same(first->failure(soon()), why);
}

TEST_F(RoundTest, who_comes_late_hears_why_it_failed) {
  join(1).reset();
  auto late = store_.join("world/", last_will_of(0), soon());
  // The news may be the answer already.
  expect_same(late.ok() ? late.value()->failure(soon()) : late.status(), last_will_of(1));
}

TEST_F(RoundTest, who_has_not_joined_can_fail_it_for_all) {
  const auto joined = join(0);
  const Status why(ErrorCode::kPeerFailed, "worker 4 has ended");
  ASSERT_TRUE(store_.fail("world/", why, soon()).ok());
  expect_same(joined->failure(soon()), why);
  auto late = store_.join("world/", last_will_of(1), soon());
  expect_same(late.ok() ? late.value()->failure(soon()) : late.status(), why);
}

TEST_F(RoundTest, a_get_that_was_late_does_not_keep_it_from_failing) {
  const auto first = join(0);
  const auto second = join(1);
  EXPECT_EQ(first->get("world/never", in(milliseconds(20))).status().code(), ErrorCode::kTimeout);
  const Status why(ErrorCode::kTimeout, "rank 2 did not come");
  expect_same(first->fail(why, soon()), why);
  expect_same(second->failure(soon()), why);
}

TEST_F(RoundTest, keys_stay_until_the_last_one_has_left) {
  const auto first = join(0);
  const auto second = join(1);
  ASSERT_TRUE(first->set("world/a", bytes_of("one"), soon()).ok());
  ASSERT_TRUE(first->leave(false, soon()).ok());
  EXPECT_EQ(second->get("world/a", soon()).value(), bytes_of("one"));
  ASSERT_TRUE(second->leave(false, soon()).ok());
  EXPECT_FALSE(store_.get("world/a", in(milliseconds(20))).ok());
}

TEST_F(RoundTest, the_last_one_stays_until_all_others_have_left) {
  const auto first = join(0);
  const auto second = join(1);
  Status left(ErrorCode::kInternal, "not run");
  std::atomic<bool> is_over{false};
  std::thread stays([&] {
    left = first->leave(true, soon());
    is_over = true;
  });
  EXPECT_TRUE(second->set("world/a", {}, soon()).ok());
  EXPECT_FALSE(is_over);
  EXPECT_TRUE(second->leave(false, soon()).ok());
  stays.join();
  EXPECT_TRUE(left.ok()) << left.message();
}

TEST_F(RoundTest, who_has_left_is_not_missed) {
  auto first = join(0);
  const auto second = join(1);
  ASSERT_TRUE(first->leave(false, soon()).ok());
  first.reset();
  EXPECT_TRUE(second->failure(in(milliseconds(50))).ok());
  // All over, the same prefix is another round.
  ASSERT_TRUE(second->leave(true, soon()).ok());
  EXPECT_TRUE(join(0)->failure({}).ok());
}

}  // namespace
}  // namespace lightcc::store_test
