// A stream is a thread with a queue; an event is a turn of one.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

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
  /// `device`: below 0, of all.
  explicit Stream(unsigned delay_us, int device = -1)
      : delay_us_(delay_us), thread_([this] { run(); }) {
    const std::lock_guard lock(all_mutex);
    all.emplace(this, device);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Whatever is queued still runs, as on a GPU.
  ~Stream() {
    {
      const std::lock_guard lock(all_mutex);
      all.erase(this);
    }
    add({});
    thread_.join();
  }

  /// `waits_for_room`: in the queue.
  void add(std::function<void()> operation, bool waits_for_room = true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !waits_for_room || queue_.size() < 1024; });
    queue_.push_back(std::move(operation));
    changed_.notify_all();
  }
  std::shared_ptr<Turn> add_turn() {
    auto turn = std::make_shared<Turn>();
    add([turn] { turn->finish(); });
    return turn;
  }
  /// Waits until all streams of a GPU have done what they were given.
  static void drain(int device) {
    std::vector<std::shared_ptr<Turn>> turns;
    {
      const std::lock_guard lock(all_mutex);
      for (const auto& [stream, own] : all) {
        if (own == device || own < 0) {
          turns.push_back(std::make_shared<Turn>());
          stream->add([turn = turns.back()] { turn->finish(); }, false);
        }
      }
    }
    for (const std::shared_ptr<Turn>& turn : turns) {
      turn->wait();
    }
  }

 private:
  // Streams, by their GPUs. These may outlive static objects.
  static inline auto& all = *new std::map<Stream*, int>;
  static inline auto& all_mutex = *new std::mutex;

  void run() {
    std::mt19937 random(1);
    while (true) {
      std::function<void()> operation;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !queue_.empty(); });
        operation = std::move(queue_.front());
        queue_.pop_front();
        changed_.notify_all();
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
