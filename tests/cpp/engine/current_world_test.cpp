// The process's current World, as kernels inside graphs find it.
#include "lightcc/engine/current_world.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

namespace lightcc {
namespace {

TEST(CurrentWorld, is_found_from_when_it_is_set_until_it_is_taken_away) {
  EXPECT_FALSE(use_current_world([](World&) { ADD_FAILURE() << "there is none"; }));
  auto world = World::create({});
  ASSERT_TRUE(world.ok());
  set_current_world(world->get());
  World* found = nullptr;
  EXPECT_TRUE(use_current_world([&](World& current) { found = &current; }));
  EXPECT_EQ(found, world->get());
  set_current_world(nullptr);
  EXPECT_FALSE(use_current_world([](World&) { ADD_FAILURE() << "it was taken away"; }));
}

TEST(CurrentWorld, of_a_forked_child_is_none_although_a_thread_used_it_meanwhile) {
  auto world = World::create({});
  ASSERT_TRUE(world.ok());
  set_current_world(world->get());
  pid_t child = -1;
  EXPECT_TRUE(use_current_world([&](World&) {  // The lock is held in the child.
    child = ::fork();
    if (child == 0) {
      ::_exit(use_current_world([](World&) {}) ? 1 : 0);
    }
  }));
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  set_current_world(nullptr);
}

}  // namespace
}  // namespace lightcc
