// Completions that were handed over: their order, and what one that waits does to it.
#include "lightcc/engine/completion_threads.hpp"

#include <atomic>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::completion_threads_test {
namespace {

TEST(CompletionThreads, run_one_after_another_elsewhere) {
  std::vector<int> order;
  {
    CompletionThreads threads;
    for (int i = 0; i < 50; ++i) {
      threads.run([&order, i, caller = std::this_thread::get_id()] {
        EXPECT_NE(std::this_thread::get_id(), caller);
        order.push_back(i);  // No lock: never two at once.
      });
    }
  }
  std::vector<int> expected(50);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(CompletionThreads, those_that_step_aside_may_wait_for_the_next) {
  std::promise<void> last;
  const std::shared_future<void> came = last.get_future().share();
  std::atomic<int> over{0};
  {
    CompletionThreads threads;
    for (int i = 0; i < 3; ++i) {
      threads.run([&] {
        CompletionThreads::step_aside();
        came.wait();
        ++over;
      });
    }
    threads.run([&] { last.set_value(); });
  }
  EXPECT_EQ(over.load(), 3);
  CompletionThreads::step_aside();  // Means nothing here.
}

}  // namespace
}  // namespace lightcc::completion_threads_test
