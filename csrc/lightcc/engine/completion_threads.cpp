#include "lightcc/engine/completion_threads.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "lightcc/engine/completion.hpp"

namespace lightcc {
namespace {

// Whose completion this thread runs; null: none's, or one that has stepped aside.
thread_local CompletionThreads* running_for = nullptr;

}  // namespace

CompletionThreads::~CompletionThreads() {
  while (true) {
    std::vector<std::thread> threads;
    {
      const MutexLock lock(mutex_);
      stop_ = true;
      // A completion that steps aside may start one more meanwhile.
      threads = std::exchange(threads_, {});
      changed_.notify_all();
    }
    if (threads.empty()) {
      return;
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

void CompletionThreads::run(std::function<void()> completion) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(completion));
    if (is_running_ || find_runner()) {
      return;
    }
    completion = std::move(queue_.back());
    queue_.pop_back();
  }
  run_completion(completion);
}

void CompletionThreads::step_aside() {
  CompletionThreads* const threads = std::exchange(running_for, nullptr);
  if (threads == nullptr) {
    return;
  }
  const MutexLock lock(threads->mutex_);
  threads->is_running_ = false;
  if (!threads->queue_.empty()) {
    (void)threads->find_runner();
  }
}

bool CompletionThreads::find_runner() {
  if (idle_ > 0) {
    changed_.notify_one();
    return true;
  }
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    return !threads_.empty();  // One that waits now takes it later.
  }
  return true;
}

void CompletionThreads::work() {
  (void)::pthread_setname_np(::pthread_self(), "lightcc-done");
  mutex_.lock();
  while (true) {
    if (queue_.empty() || is_running_) {
      if (stop_ && queue_.empty()) {
        break;
      }
      ++idle_;
      changed_.wait(mutex_);
      --idle_;
      continue;
    }
    const std::function<void()> completion = std::move(queue_.front());
    queue_.pop_front();
    is_running_ = true;
    mutex_.unlock();
    running_for = this;
    run_completion(completion);
    const bool has_stepped_aside = std::exchange(running_for, nullptr) == nullptr;
    mutex_.lock();
    is_running_ = is_running_ && has_stepped_aside;
  }
  changed_.notify_all();
  mutex_.unlock();
}

}  // namespace lightcc
