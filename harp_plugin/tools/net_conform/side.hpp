// One of the two sides of a case: its threads, its driver, its end of the channel.
//
// The thread that runs a case plays NCCL's service thread (listen, connect, accept, registration,
// close), and progress() is the other one (isend, irecv, test). A ends up sending and B receiving
// where a case moves messages one way.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "driver.hpp"
#include "library.hpp"
#include "memory.hpp"
#include "options.hpp"
#include "sync/mutex.hpp"

namespace net_conform {

using TimePoint = std::chrono::steady_clock::time_point;

/// Between two looks in vain: a thread yields, as NCCL's do. After a thousand it naps, since who
/// waits for a timeout would keep a core from who works.
class Patience {
 public:
  void wait() {
    if (++looks_ < kLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void renew() { looks_ = 0; }

 private:
  static constexpr int kLooks = 1000;
  int looks_ = 0;
};

/// A thread that does one thing after another for somebody who waits.
class Worker {
 public:
  explicit Worker(const char* name);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();
  /// Blocks until it is done; what it throws is thrown here.
  void run(const std::function<void()>& task);
  /// Starts it; the next run() or wait() waits for it.
  void start(std::function<void()> task);
  void wait();

 private:
  void loop();

  harp::Mutex mutex_;
  harp::CondVar changed_;
  std::function<void()> task_ HARP_GUARDED_BY(mutex_);  ///< Until it is done.
  std::exception_ptr error_ HARP_GUARDED_BY(mutex_);
  bool is_stopping_ HARP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class Side {
 public:
  Side(bool is_a, Library* library, Channel* channel, const Options& options);
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() = default;

  bool is_a() const { return is_a_; }
  const Options& options() const { return options_; }
  Library& library() { return *library_; }
  Driver& driver() { return library_->driver(); }
  void* context() const { return context_; }
  int device() const { return options_.device; }
  const harp::abi::PropertiesV12& properties() const { return properties_; }
  Channel& channel() { return *channel_; }
  Worker& progress() { return progress_; }

  /// init, and what is known of the device. Notes against `rule` and returns false where that
  /// fails.
  bool begin(const char* rule);
  void end();

  void begin_case(std::uint32_t number);
  TimePoint deadline() const { return deadline_; }
  void set_deadline(double seconds);

  void meet() { channel_->meet(deadline_); }
  std::vector<std::byte> hear() { return channel_->receive(deadline_); }
  void say(std::span<const std::byte> data) { channel_->send(data); }

  /// Calls `attempt` until it says true; a rule that is broken by taking too long.
  void poll(const char* rule, const char* what, const std::function<bool()>& attempt);

 private:
  bool is_a_;
  Library* library_;
  Channel* channel_;
  const Options& options_;
  void* context_ = nullptr;
  harp::abi::PropertiesV12 properties_{};
  TimePoint deadline_;
  Worker progress_;
};

/// A comm of the plugin, closed by close() or, after a failure, by the end of its life.
class Comm {
 public:
  enum class Kind : std::uint8_t { kListen, kSend, kRecv };
  Comm() = default;
  Comm(Side* side, Kind kind, void* pointer) : side_(side), kind_(kind), pointer_(pointer) {}
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  Comm(Comm&& other) noexcept
      : side_(other.side_), kind_(other.kind_), pointer_(std::exchange(other.pointer_, nullptr)) {}
  Comm& operator=(Comm&& other) noexcept {
    std::swap(side_, other.side_);
    std::swap(kind_, other.kind_);
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Comm() { close(); }
  void* get() const { return pointer_; }
  Result close();

 private:
  Side* side_ = nullptr;
  Kind kind_ = Kind::kListen;
  void* pointer_ = nullptr;
};

/// A listening comm and its handle, in a buffer of exactly NCCL's size.
struct Listener {
  Comm comm;
  GuardedBuffer handle{0};
};

Listener listen(Side& side);
Comm connect_to(Side& side, std::span<const std::byte> handle);
Comm accept_from(Side& side, const Listener& listener);

/// A's and B's half of one new connection, with the handle over the channel.
Comm open_sender(Side& side);
Comm open_receiver(Side& side);
/// This side's half of a connection on which A sends.
Comm open_comm(Side& side);

}  // namespace net_conform
