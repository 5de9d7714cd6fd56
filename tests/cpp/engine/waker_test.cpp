// Who is woken by what: through the gate, and beside it.
#include "lightcc/engine/waker.hpp"

#include <sys/eventfd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::waker_test {
namespace {

using namespace std::chrono_literals;

constexpr Duration kShort = 10ms;
constexpr Duration kLong = 60s;
constexpr std::uint64_t kTag = 7;

class WakerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = Waker::make(word_, bell_.get());
    ASSERT_TRUE(made.ok()) << made.status().message();
    waker_.emplace(std::move(made).value());
    ASSERT_TRUE(waker_->watch(news_.get(), kTag).ok());
  }
  void bring_news() const { ASSERT_EQ(::eventfd_write(news_.get(), 1), 0); }

  SleepWord word_{};
  UniqueFd bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  UniqueFd news_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::optional<Waker> waker_;
};

TEST_F(WakerTest, AnOpenGateLetsNewsThrough) {
  EXPECT_FALSE(waker_->wait_at_gate(kShort));
  bring_news();
  EXPECT_TRUE(waker_->wait_at_gate(kLong));
}

TEST_F(WakerTest, AShutGateHoldsNewsBackUntilItOpens) {
  waker_->shut_gate();
  bring_news();
  EXPECT_FALSE(waker_->wait_at_gate(kShort));
  waker_->wait(kLong);  // The driver hears of it.
  EXPECT_EQ(waker_->ready(), std::vector<std::uint64_t>{kTag});
  waker_->open_gate();
  EXPECT_TRUE(waker_->wait_at_gate(kLong));
}

TEST_F(WakerTest, OpeningTheGateWakesWhoSleepsThere) {
  waker_->shut_gate();
  bool woken = false;
  std::thread sleeper([&] { woken = waker_->wait_at_gate(kLong); });
  bring_news();
  waker_->open_gate();
  sleeper.join();
  EXPECT_TRUE(woken);
}

TEST_F(WakerTest, TheBellRingsAtTheGateToo) {
  waker_->prepare_to_sleep(kIdle);
  waker_->wake();
  EXPECT_TRUE(waker_->wait_at_gate(kLong));
  EXPECT_TRUE(waker_->ready().empty());  // Which empties the bell.
  EXPECT_FALSE(waker_->wait_at_gate(kShort));
}

}  // namespace
}  // namespace lightcc::waker_test
