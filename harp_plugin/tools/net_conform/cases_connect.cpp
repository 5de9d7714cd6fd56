// How two peers find each other: listen, the handle's way, connect, accept.
#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "cases.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace net_conform {
namespace {

/// A few messages through a fresh connection: it is worth nothing if they do not arrive.
void exchange(Side& side, void* comm, std::uint64_t seed) {
  run_stream(side, comm, equal_messages(4, 3000, 8192), {.seed = seed});
}

/// How many bytes of its buffer listen() writes, seen by writing into two different backgrounds.
void handle_size(Side& side) {
  const std::size_t limit = side.options().handle_limit_bytes;
  Driver& driver = side.driver();
  std::size_t used = 0;
  for (const int background : {0xAA, 0x55}) {
    const GuardedBuffer handle(driver.handle_bytes());
    std::memset(handle.data(), background, handle.size());
    void* pointer = nullptr;
    const Result result = driver.listen(side.context(), side.device(), handle.data(), &pointer);
    require("connect.listen",
            result == Result::kSuccess && pointer != nullptr,
            "listen: %s",
            name_of(result));
    const Comm comm(&side, Comm::Kind::kListen, pointer);
    for (std::size_t i = 0; i < handle.size(); ++i) {
      if (handle.span()[i] != static_cast<std::byte>(background)) {
        used = std::max(used, i + 1);
      }
    }
  }
  const std::size_t maximum = limit != 0 ? limit : driver.handle_bytes();
  check("connect.handle-size",
        used >= 1 && used <= maximum,
        "%zu bytes are written, %zu are allowed",
        used,
        maximum);
}

void accept_first(Side& side) {
  if (side.driver().may_block()) {
    skip("connect.accept-first", "version 4 may block in accept");
    return;
  }
  if (side.is_a()) {
    const auto handle = side.hear();
    side.hear();  // B has called accept many times.
    const Comm comm = connect_to(side, handle);
    exchange(side, comm.get(), 1);
    side.meet();
    return;
  }
  Listener listener = listen(side);
  side.say(listener.handle.span());
  for (int i = 0; i < 100; ++i) {
    void* comm = nullptr;
    const Result result = side.driver().accept(listener.comm.get(), &comm);
    require("connect.accept-first",
            result == Result::kSuccess && comm == nullptr,
            "accept without a peer: %s, comm %p",
            name_of(result),
            comm);
  }
  side.say({});
  const Comm comm = accept_from(side, listener);
  exchange(side, comm.get(), 1);
  side.meet();
}

/// A calls connect many times before B calls accept for the first time.
void connect_first(Side& side) {
  if (!side.is_a()) {
    Listener listener = listen(side);
    side.say(listener.handle.span());
    side.hear();
    const Comm comm = accept_from(side, listener);
    exchange(side, comm.get(), 2);
    side.meet();
    return;
  }
  const auto bytes = side.hear();
  const GuardedBuffer handle(side.driver().handle_bytes());
  std::memcpy(handle.data(), bytes.data(), handle.size());
  void* pointer = nullptr;
  const int times = side.driver().may_block() ? 1 : 200;
  for (int i = 0; i < times && pointer == nullptr; ++i) {
    const Result result =
        side.driver().connect(side.context(), side.device(), handle.data(), &pointer);
    require("connect.connect-first", result == Result::kSuccess, "connect: %s", name_of(result));
    ::sched_yield();
  }
  if (side.driver().may_block()) {
    require("connect.without-accept", pointer != nullptr, "connect returned without a comm");
  } else {
    skip("connect.without-accept", "not version 4");
  }
  side.say({});
  side.poll("connect.connect-first", "connect", [&] {
    if (pointer == nullptr) {
      const Result result =
          side.driver().connect(side.context(), side.device(), handle.data(), &pointer);
      require("connect.connect-first", result == Result::kSuccess, "connect: %s", name_of(result));
    }
    return pointer != nullptr;
  });
  const Comm comm(&side, Comm::Kind::kSend, pointer);
  exchange(side, comm.get(), 2);
  side.meet();
}

void many_per_listener(Side& side) {
  constexpr std::size_t kComms = 10;
  std::vector<Comm> comms;
  if (side.is_a()) {
    const auto handle = side.hear();
    for (std::size_t i = 0; i < kComms; ++i) {
      comms.push_back(connect_to(side, handle));
      side.meet();
    }
  } else {
    Listener listener = listen(side);
    side.say(listener.handle.span());
    for (std::size_t i = 0; i < kComms; ++i) {
      comms.push_back(accept_from(side, listener));
      side.meet();
    }
    check(
        "connect.close-listener", listener.comm.close() == Result::kSuccess, "closeListen failed");
  }
  for (std::size_t i = 0; i < kComms; ++i) {
    exchange(side, comms[i].get(), 100 + i);
  }
  pass("connect.many-per-listener");
  side.meet();
}

/// Both listen, both connect, both accept: what a ring of two does, and what deadlocks where
/// connect waits for the peer's accept.
void both_ways(Side& side) {
  Listener listener = listen(side);
  side.say(listener.handle.span());
  const Comm to_peer = connect_to(side, side.hear());
  Comm from_peer = accept_from(side, listener);
  check("connect.close-listener", listener.comm.close() == Result::kSuccess, "closeListen failed");
  Worker receiver("NCCL Progress 2");
  const auto messages = equal_messages(20, 100000, 131072);
  const std::uint64_t mine = side.is_a() ? 1 : 2;
  receiver.start([&] { recv_stream(side, from_peer.get(), messages, {.seed = 3 - mine}); });
  side.progress().run([&] { send_stream(side, to_peer.get(), messages, {.seed = mine}); });
  receiver.wait();
  pass("connect.both-ways");
  side.meet();
}

void many(Side& side) {
  constexpr std::size_t kComms = 32;
  std::vector<Comm> comms;
  for (std::size_t i = 0; i < kComms; ++i) {
    comms.push_back(open_comm(side));
  }
  for (std::size_t i = 0; i < kComms; ++i) {
    exchange(side, comms[i].get(), 1000 + i);
  }
  pass("connect.many");
  side.meet();
}

/// Each attempt has the handle at another address, with everything that connect wrote to it undone.
void copied_handle(Side& side) {
  if (!side.is_a()) {
    const Comm comm = open_receiver(side);
    exchange(side, comm.get(), 3);
    side.meet();
    return;
  }
  const auto bytes = side.hear();
  void* pointer = nullptr;
  std::vector<GuardedBuffer> copies;  // All of them stay, so that no address comes twice.
  constexpr std::size_t kMaxCopies = 4096;
  side.poll("connect.copied-handle", "connect", [&] {
    if (copies.size() < kMaxCopies) {
      copies.emplace_back(side.driver().handle_bytes());
    }
    GuardedBuffer& copy = copies.back();
    std::memcpy(copy.data(), bytes.data(), copy.size());
    const Result result =
        side.driver().connect(side.context(), side.device(), copy.data(), &pointer);
    require("connect.copied-handle", result == Result::kSuccess, "connect: %s", name_of(result));
    return pointer != nullptr;
  });
  const Comm comm(&side, Comm::Kind::kSend, pointer);
  exchange(side, comm.get(), 3);
  pass("connect.copied-handle");
  side.meet();
}

std::size_t entries_of(const char* folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder), ::closedir);
  std::size_t count = 0;
  while (stream != nullptr &&
         ::readdir(stream.get()) != nullptr) {  // NOLINT(concurrency-mt-unsafe)
    ++count;
  }
  return count;
}

/// One process with two sides counts them all, so B counts too and a small difference is no leak.
void cycles(Side& side) {
  constexpr int kWarm = 10;
  constexpr int kCycles = 40;
  constexpr std::size_t kSlack = 8;
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  for (int i = 0; i < kWarm + kCycles; ++i) {
    if (i == kWarm) {
      side.meet();
      descriptors = entries_of("/proc/self/fd");
      threads = entries_of("/proc/self/task");
    }
    Comm comm = open_comm(side);
    if (i % 10 == 0) {
      exchange(side, comm.get(), 4);
    }
    side.meet();
    check("connect.cycles", comm.close() == Result::kSuccess, "cycle %d: close failed", i);
    side.meet();
  }
  const std::size_t descriptors_after = entries_of("/proc/self/fd");
  const std::size_t threads_after = entries_of("/proc/self/task");
  check("connect.cycles",
        descriptors_after <= descriptors + kSlack && threads_after <= threads + kSlack,
        "%d cycles: descriptors %zu to %zu, threads %zu to %zu",
        kCycles,
        descriptors,
        descriptors_after,
        threads,
        threads_after);
  side.meet();
}

void dead_listener(Side& side) {
  if (!side.is_a()) {
    Listener listener = listen(side);
    check(
        "connect.close-listener", listener.comm.close() == Result::kSuccess, "closeListen failed");
    side.say(listener.handle.span());
    side.set_deadline(side.options().peer_limit_s + side.options().limit_s);
    side.hear();
    return;
  }
  side.set_deadline(side.options().peer_limit_s);
  const auto bytes = side.hear();
  const GuardedBuffer handle(side.driver().handle_bytes());
  std::memcpy(handle.data(), bytes.data(), handle.size());
  Comm comm;
  GuardedBuffer data(64);
  Request sent;
  // The error may come from connect, or from the first message.
  side.poll("connect.dead-listener", "the error of a connection to a closed listener", [&] {
    if (comm.get() == nullptr) {
      void* pointer = nullptr;
      if (side.driver().connect(side.context(), side.device(), handle.data(), &pointer) !=
          Result::kSuccess) {
        return true;
      }
      comm = Comm(&side, Comm::Kind::kSend, pointer);
      return false;
    }
    if (sent.pointer == nullptr) {
      return side.driver().isend(comm.get(), data.data(), data.size(), 0, nullptr, &sent.pointer) !=
             Result::kSuccess;
    }
    bool done = false;
    if (side.driver().test(sent.pointer, &done, nullptr) != Result::kSuccess) {
      return true;
    }
    sent.pointer = done ? nullptr : sent.pointer;  // It is in a queue. Send more.
    return false;
  });
  pass("connect.dead-listener");
  side.say({});
}

}  // namespace

std::span<const Case> connect_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"connect.handle", handle_size, {"connect.listen", "connect.handle-size"}, Needs::kNoPeer},
      {"connect.accept-first", accept_first, {"connect.accept-first"}},
      {"connect.connect-first", connect_first, {"connect.connect-first", "connect.without-accept"}},
      {"connect.many-per-listener",
       many_per_listener,
       {"connect.many-per-listener", "connect.close-listener"}},
      {"connect.both-ways", both_ways, {"connect.both-ways"}},
      {"connect.many", many, {"connect.many"}},
      {"connect.copied-handle", copied_handle, {"connect.copied-handle"}, Needs::kStrict},
      {"connect.cycles", cycles, {"connect.cycles"}},
      {"connect.dead-listener", dead_listener, {"connect.dead-listener"}},
  });
  return kCases;
}

}  // namespace net_conform
