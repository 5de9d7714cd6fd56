// Ranks, clients and writers of tests as threads.
#pragma once

#include <thread>
#include <vector>

namespace lightcc {

/// Runs `body` once for each number below `count`, each on its own thread, and waits for all.
template <typename Count, typename Body>
void run_on_threads(Count count, const Body& body) {
  std::vector<std::thread> threads;
  for (Count i = 0; i < count; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace lightcc
