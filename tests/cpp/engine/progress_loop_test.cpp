// The loop on a core of the test's own, driven by the test's thread alone.
#include "lightcc/engine/progress_loop.hpp"

#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

namespace lightcc::progress_loop_test {
namespace {

using namespace std::chrono_literals;

/// Goes on whenever it is looked at.
class HastyClock final : public Clock {
 public:
  TimePoint now() const override { return now_ += 1us; }
  void pass(Duration time) const { now_ += time; }

 private:
  mutable TimePoint now_{};
};

/// Has nothing to do but what a test gives it.
class FakeCore final : public Driven {
 public:
  FakeCore() {
    auto made = Waker::make(word_, bell_.get());
    EXPECT_TRUE(made.ok()) << made.status().message();
    waker_.emplace(std::move(made).value());
  }

  bool step() override {
    ++steps;
    return on_step && on_step();
  }
  void note_wakeup() override { ++wakeups; }
  bool busy() const override { return true; }
  bool prepare_to_sleep() override {
    waker_->prepare_to_sleep(kIdle);
    return !moves_at_last;
  }
  Duration time_to_look() const override { return Duration::zero(); }  // So that nobody waits.
  bool over() const override { return false; }
  Waker& waker() override { return *waker_; }

  bool is_announced() const { return word_.sleeping.load() != kAwake; }
  bool has_rung() const {
    eventfd_t rings = 0;
    return ::eventfd_read(bell_.get(), &rings) == 0;
  }

  int steps = 0;
  int wakeups = 0;
  std::function<bool()> on_step;
  bool moves_at_last = false;  // When somebody is about to leave the loop.

 private:
  SleepWord word_{};
  UniqueFd bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::optional<Waker> waker_;
};

class ProgressLoopTest : public ::testing::Test {
 protected:
  ProgressLoop loop(Duration spin, bool shuts_gate = false) {
    return {
        core_, operations_, clock_, {.pause = spin, .foreground = spin, .shuts_gate = shuts_gate}};
  }

  HastyClock clock_;
  OperationTable operations_;
  FakeCore core_;
};

TEST_F(ProgressLoopTest, AWaitingThreadDrivesUntilItsHandleIsDone) {
  ProgressLoop loop = this->loop(1ms);
  core_.on_step = [&] {
    EXPECT_FALSE(core_.is_announced());
    return core_.steps < 5;
  };
  loop.help([&] { return core_.steps == 5; }, nullptr);
  EXPECT_EQ(core_.steps, 5);
  EXPECT_EQ(loop.sleeps(), 0U);
  EXPECT_TRUE(core_.is_announced());  // Nobody drives, so peers ring.
  EXPECT_FALSE(core_.has_rung());
  const MutexLock lock(loop.mutex());
}

TEST_F(ProgressLoopTest, NobodyDrivesForWhatIsDone) {
  ProgressLoop loop = this->loop(1ms);
  loop.help([] { return true; }, nullptr);
  EXPECT_EQ(core_.steps, 0);
}

TEST_F(ProgressLoopTest, WhatStillMovesWhenADriverLeavesIsForTheOwnThread) {
  ProgressLoop loop = this->loop(1ms);
  core_.moves_at_last = true;
  loop.help([&] { return core_.steps == 1; }, nullptr);
  EXPECT_TRUE(core_.has_rung());
}

TEST_F(ProgressLoopTest, ADriverSleepsWhenNothingMovesForSoLong) {
  ProgressLoop loop = this->loop(50us);
  loop.help([&] { return loop.sleeps() == 2; }, nullptr);
  EXPECT_EQ(core_.wakeups, 2);
}

TEST_F(ProgressLoopTest, ADriverThatMovesSomethingDoesNotSleep) {
  ProgressLoop loop = this->loop(0s);
  core_.on_step = [] { return true; };
  loop.help([&] { return core_.steps == 1000; }, nullptr);
  EXPECT_EQ(loop.sleeps(), 0U);
}

TEST_F(ProgressLoopTest, ADriverDoesNotSleepWhileSomethingMovesAtLast) {
  ProgressLoop loop = this->loop(0s);
  core_.moves_at_last = true;
  loop.help([&] { return core_.steps == 100; }, nullptr);
  EXPECT_EQ(loop.sleeps(), 0U);
}

TEST_F(ProgressLoopTest, ADriverComesBackToAskWhetherItWasInterrupted) {
  ProgressLoop loop = this->loop(1h);
  core_.on_step = [&] {
    clock_.pass(10ms);
    return false;
  };
  loop.help([] { return false; }, nullptr);
  EXPECT_EQ(core_.steps, 16);  // At its next look at the clock.
}

TEST_F(ProgressLoopTest, CompletionsRunOnTheThreadThatDroveWhenAnotherMayDrive) {
  ProgressLoop loop = this->loop(1ms);
  std::vector<Operation> operations(1);
  operations[0].name = "t";
  const auto handle = operations_.add(std::move(operations), Grouping::kNone);
  ASSERT_TRUE(handle.ok());
  int completions = 0;
  ASSERT_TRUE(operations_.call_when_done(**handle, [&] {
    ++completions;
    EXPECT_TRUE(is_in_completion());
    const MutexLock lock(loop.mutex());
  }));
  core_.on_step = [&] {
    operations_.complete(*operations_.find(0, "allreduce.t"), {}, {});
    EXPECT_EQ(completions, 0);
    return true;
  };
  loop.help([] { return false; }, nullptr);  // It leaves off for them.
  EXPECT_EQ(completions, 1);
  EXPECT_EQ(core_.steps, 1);
}

TEST_F(ProgressLoopTest, ACompletionThatWaitsDrivesAndHasOthersRun) {
  ProgressLoop loop = this->loop(1ms);
  std::vector<Operation> operations(1);
  operations[0].name = "t";
  const auto handle = operations_.add(std::move(operations), Grouping::kNone);
  ASSERT_TRUE(handle.ok());
  int completions = 0;
  ASSERT_TRUE(operations_.call_when_done(**handle, [&] {
    loop.help([&] { return completions == 1; }, nullptr);
    EXPECT_EQ(completions, 1);
    completions += 10;
  }));
  ASSERT_TRUE(operations_.call_when_done(**handle, [&] { ++completions; }));
  core_.on_step = [&] {
    operations_.complete(*operations_.find(0, "allreduce.t"), {}, {});
    return true;
  };
  loop.help([] { return false; }, nullptr);
  EXPECT_EQ(completions, 11);
}

TEST_F(ProgressLoopTest, WhatArrivesForADriverWakesNobodyBesideIt) {
  for (const bool shuts_gate : {false, true}) {
    ProgressLoop loop = this->loop(1ms, shuts_gate);
    core_.steps = 0;
    core_.on_step = [&] {
      core_.waker().prepare_to_sleep(kIdle);
      core_.waker().wake();
      EXPECT_EQ(core_.waker().wait_at_gate(Duration::zero()), !shuts_gate);
      return true;
    };
    loop.help([&] { return core_.steps == 1; }, nullptr);
    EXPECT_TRUE(core_.waker().wait_at_gate(Duration::zero()));
    (void)core_.waker().ready();
  }
}

TEST_F(ProgressLoopTest, TheOwnThreadStepsUntilItIsStopped) {
  ProgressLoop loop = this->loop(0s);
  std::atomic<bool> has_stepped{false};
  core_.on_step = [&] {
    has_stepped.store(true);
    return false;
  };
  EXPECT_FALSE(loop.has_thread());
  ASSERT_TRUE(loop.start_thread().ok());
  EXPECT_TRUE(loop.has_thread());
  while (!has_stepped.load()) {
    relax(true);
  }
  loop.stop_thread();
  EXPECT_FALSE(loop.has_thread());
}

}  // namespace
}  // namespace lightcc::progress_loop_test
