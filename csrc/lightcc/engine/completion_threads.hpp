// The threads on which completions run that no waiting thread runs.
//
// The World's own thread must go on driving: a completion may wait for what needs it. So it hands
// completions over. They run one after another, in their order. One that is about to wait steps
// aside: others then go on, on another thread. A thread is started when it is first needed.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "lightcc/base/mutex.hpp"

namespace lightcc {

/// Thread: any.
class CompletionThreads {
 public:
  CompletionThreads() = default;
  CompletionThreads(const CompletionThreads&) = delete;
  CompletionThreads& operator=(const CompletionThreads&) = delete;
  /// Waits until all has run. Blocks: yes.
  ~CompletionThreads();

  /// Runs `completion` as one (engine/completion.hpp), behind those that were handed over before;
  /// at once, on this thread, where there is no thread and none can be started.
  void run(std::function<void()> completion) LIGHTCC_EXCLUDES(mutex_);
  /// The completion that this thread runs, if it does, keeps nobody from running others.
  static void step_aside();

 private:
  void work() LIGHTCC_EXCLUDES(mutex_);
  /// Sees to it that somebody takes what is queued. False: there is no thread.
  bool find_runner() LIGHTCC_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ LIGHTCC_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ LIGHTCC_GUARDED_BY(mutex_);
  std::size_t idle_ LIGHTCC_GUARDED_BY(mutex_) = 0;
  bool is_running_ LIGHTCC_GUARDED_BY(mutex_) = false;  // A completion that did not step aside.
  bool stop_ LIGHTCC_GUARDED_BY(mutex_) = false;
};

}  // namespace lightcc
