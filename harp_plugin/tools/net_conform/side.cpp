#include "side.hpp"

#include <pthread.h>

#include <cstring>

#include "report.hpp"

namespace net_conform {

Worker::Worker(const char* name) : thread_([this] { loop(); }) {
  ::pthread_setname_np(thread_.native_handle(), name);
}

Worker::~Worker() {
  {
    const harp::MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::run(const std::function<void()>& task) {
  start(task);
  wait();
}

void Worker::start(std::function<void()> task) {
  {
    const harp::MutexLock lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void Worker::wait() {
  std::exception_ptr error;
  {
    const harp::MutexLock lock(mutex_);
    while (task_ != nullptr) {
      changed_.wait(mutex_);
    }
    error = std::exchange(error_, nullptr);
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

void Worker::loop() {
  while (true) {
    std::function<void()> task;
    {
      const harp::MutexLock lock(mutex_);
      while (!is_stopping_ && task_ == nullptr) {
        changed_.wait(mutex_);
      }
      if (task_ == nullptr) {
        return;
      }
      task = task_;
    }
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    const harp::MutexLock lock(mutex_);
    error_ = error;
    task_ = nullptr;
    changed_.notify_all();
  }
}

Side::Side(bool is_a, Library* library, Channel* channel, const Options& options)
    : is_a_(is_a),
      library_(library),
      channel_(channel),
      options_(options),
      progress_("NCCL Progress") {}

bool Side::begin(const char* rule) {
  int count = 0;
  Result result = driver().init(&context_);
  if (result == Result::kSuccess) {
    result = driver().devices(&count);
  }
  check(rule,
        result == Result::kSuccess && count > device(),
        "init and devices: %s, %d devices, device %d wanted",
        name_of(result),
        count,
        device());
  if (result != Result::kSuccess || count <= device()) {
    return false;
  }
  result = driver().get_properties(device(), &properties_);
  check("load.properties-complete", result == Result::kSuccess, "%s", name_of(result));
  return result == Result::kSuccess;
}

void Side::end() {
  if (context_ != nullptr) {
    driver().finalize(context_);
    context_ = nullptr;
  }
}

void Side::begin_case(std::uint32_t number) {
  channel_->begin_case(number);
  set_deadline(options_.limit_s);
}

void Side::set_deadline(double seconds) {
  deadline_ =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

void Side::poll(const char* rule, const char* what, const std::function<bool()>& attempt) {
  for (Patience patience; !attempt(); patience.wait()) {
    require(rule,
            std::chrono::steady_clock::now() < deadline_,
            "%s took longer than %.0f s",
            what,
            options_.limit_s);
  }
}

Result Comm::close() {
  if (pointer_ == nullptr) {
    return Result::kSuccess;
  }
  void* const pointer = std::exchange(pointer_, nullptr);
  switch (kind_) {
    case Kind::kListen:
      return side_->driver().close_listen(pointer);
    case Kind::kSend:
      return side_->driver().close_send(pointer);
    case Kind::kRecv:
      break;
  }
  return side_->driver().close_recv(pointer);
}

Listener listen(Side& side) {
  Listener listener;
  listener.handle = GuardedBuffer(side.driver().handle_bytes());
  void* comm = nullptr;
  const Result result =
      side.driver().listen(side.context(), side.device(), listener.handle.data(), &comm);
  require("connect.listen",
          result == Result::kSuccess && comm != nullptr,
          "listen: %s, comm %p",
          name_of(result),
          comm);
  listener.comm = Comm(&side, Comm::Kind::kListen, comm);
  return listener;
}

Comm connect_to(Side& side, std::span<const std::byte> handle) {
  const GuardedBuffer copy(side.driver().handle_bytes());
  std::memcpy(copy.data(), handle.data(), std::min(handle.size(), copy.size()));
  void* comm = nullptr;
  side.poll("connect.connect-first", "connect", [&] {
    const Result result = side.driver().connect(side.context(), side.device(), copy.data(), &comm);
    require("connect.connect-first", result == Result::kSuccess, "connect: %s", name_of(result));
    return comm != nullptr;
  });
  return {&side, Comm::Kind::kSend, comm};
}

Comm accept_from(Side& side, const Listener& listener) {
  void* comm = nullptr;
  side.poll("connect.accept-first", "accept", [&] {
    const Result result = side.driver().accept(listener.comm.get(), &comm);
    require("connect.accept-first", result == Result::kSuccess, "accept: %s", name_of(result));
    return comm != nullptr;
  });
  return {&side, Comm::Kind::kRecv, comm};
}

Comm open_sender(Side& side) {
  return connect_to(side, side.hear());
}

Comm open_receiver(Side& side) {
  Listener listener = listen(side);
  side.say(listener.handle.span());
  Comm comm = accept_from(side, listener);
  const Result result = listener.comm.close();
  check("connect.close-listener", result == Result::kSuccess, "closeListen: %s", name_of(result));
  return comm;
}

Comm open_comm(Side& side) {
  return side.is_a() ? open_sender(side) : open_receiver(side);
}

}  // namespace net_conform
