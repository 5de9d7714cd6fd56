// Who is woken by what: a lost wake-up would hang a job, a needless one costs microseconds.
#include <sys/eventfd.h>

#include <cerrno>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/shm/doorbell.hpp"

namespace lightcc::shm_doorbell_test {
namespace {

class ShmDoorbell : public ::testing::Test {
 protected:
  void sleep_as(SleepState state) { word_.sleeping.store(state, std::memory_order_seq_cst); }
  bool was_woken() {
    eventfd_t count = 0;
    return ::eventfd_read(bell_.get(), &count) == 0;
  }

  SleepWord word_{};
  UniqueFd bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Doorbell doorbell_{&word_, bell_.get()};
};

TEST_F(ShmDoorbell, a_rank_that_is_awake_is_not_woken) {
  doorbell_.ring();
  doorbell_.call();
  EXPECT_FALSE(was_woken());
}

TEST_F(ShmDoorbell, ring_wakes_a_rank_that_waits_once) {
  sleep_as(kWaiting);
  doorbell_.ring();
  EXPECT_EQ(word_.sleeping.load(), kAwake);
  EXPECT_TRUE(was_woken());
  doorbell_.ring();
  EXPECT_FALSE(was_woken()) << "it is awake now";
}

TEST_F(ShmDoorbell, ring_leaves_an_idle_rank_alone) {
  sleep_as(kIdle);
  doorbell_.ring();
  EXPECT_EQ(word_.sleeping.load(), kIdle);
  EXPECT_FALSE(was_woken());
}

TEST_F(ShmDoorbell, call_wakes_every_sleeper) {
  for (const SleepState state : {kWaiting, kIdle}) {
    sleep_as(state);
    doorbell_.call();
    EXPECT_EQ(word_.sleeping.load(), kAwake);
    EXPECT_TRUE(was_woken()) << "state " << state;
  }
}

TEST_F(ShmDoorbell, a_bell_of_nobody_is_silent) {
  const Doorbell nobody;
  nobody.ring();
  nobody.call();
}

}  // namespace
}  // namespace lightcc::shm_doorbell_test
