#include "telemetry/process.hpp"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

namespace harp::process_test {
namespace {

TEST(Process, this_one_is_alive_and_the_same_each_time) {
  const ProcessIdentity own = own_identity();
  EXPECT_EQ(own.pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_NE(own.start_ticks, 0U);
  EXPECT_NE(own.pid_namespace, 0U);
  EXPECT_EQ(own, own_identity());
  EXPECT_EQ(look_for(own), ProcessLife::kAlive);
}

TEST(Process, another_one_with_the_same_number_is_not_it) {
  ProcessIdentity before = own_identity();
  --before.start_ticks;
  EXPECT_EQ(look_for(before), ProcessLife::kDead);
}

TEST(Process, one_of_another_boot_is_dead_wherever_it_ran) {
  ProcessIdentity before = own_identity();
  before.boot_id[3] ^= std::byte{1};
  before.pid_namespace = 1;
  EXPECT_EQ(look_for(before), ProcessLife::kDead);
}

TEST(Process, one_of_another_namespace_cannot_be_judged) {
  ProcessIdentity elsewhere = own_identity();
  ++elsewhere.pid_namespace;
  EXPECT_EQ(look_for(elsewhere), ProcessLife::kUnknown);
  elsewhere.start_ticks = 1;
  EXPECT_EQ(look_for(elsewhere), ProcessLife::kUnknown);
}

TEST(Process, one_that_did_not_know_itself_cannot_be_judged) {
  ProcessIdentity blind = own_identity();
  blind.start_ticks = 0;
  EXPECT_EQ(look_for(blind), ProcessLife::kUnknown);
}

TEST(Process, one_that_has_ended_is_dead_even_before_its_parent_looks) {
  std::array<int, 2> says{};
  std::array<int, 2> goes{};
  ASSERT_EQ(::pipe(says.data()), 0);
  ASSERT_EQ(::pipe(goes.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const ProcessIdentity own = own_identity();
    char ignored = 0;
    ::close(goes[1]);
    const bool is_said = ::write(says[1], &own, sizeof(own)) == static_cast<ssize_t>(sizeof(own));
    (void)!::read(goes[0], &ignored, 1);  // Until the parent closes its end.
    ::_exit(is_said ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  ProcessIdentity other;
  ASSERT_EQ(::read(says[0], &other, sizeof(other)), static_cast<ssize_t>(sizeof(other)));
  EXPECT_EQ(other.pid, static_cast<std::uint32_t>(child));
  EXPECT_EQ(look_for(other), ProcessLife::kAlive);
  ::close(goes[1]);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(look_for(other), ProcessLife::kDead) << "a zombie";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(look_for(other), ProcessLife::kDead);
  for (const int end : {says[0], says[1], goes[0]}) {
    ::close(end);
  }
}

}  // namespace
}  // namespace harp::process_test
