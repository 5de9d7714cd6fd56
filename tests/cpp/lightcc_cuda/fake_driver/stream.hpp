// A stream is a thread with a queue; an event is a turn of one.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace lightcc::cuda::fake {

class Turn {
 public:
  void finish() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    finished_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  bool is_done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  /// Once it is done.
  std::chrono::steady_clock::time_point finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point finished_;
};

class Stream {
 public:
  explicit Stream(unsigned delay_us) : delay_us_(delay_us), thread_([this] { run(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Whatever is queued still runs, as on a GPU.
  ~Stream() {
    add({});
    thread_.join();
  }

  void add(std::function<void()> operation) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
    changed_.notify_all();
  }
  std::shared_ptr<Turn> add_turn() {
    auto turn = std::make_shared<Turn>();
    add([turn] { turn->finish(); });
    return turn;
  }

 private:
  void run() {
    std::mt19937 random(1);
    while (true) {
      std::function<void()> operation;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !queue_.empty(); });
        operation = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!operation) {
        return;
      }
      if (delay_us_ > 0) {
        ::usleep(static_cast<useconds_t>(random() % delay_us_));
      }
      operation();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  unsigned delay_us_;
  std::thread thread_;
};

}  // namespace lightcc::cuda::fake
