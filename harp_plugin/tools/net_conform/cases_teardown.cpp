// The end: orderly, early, and of the peer.
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, with kill()
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "cases.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace net_conform {
namespace {

void stream(Side& side, void* comm, std::size_t count, std::size_t bytes, std::uint64_t seed) {
  run_stream(side, comm, equal_messages(count, bytes, bytes), {.seed = seed});
}

/// After a connection ended somehow, a new one works.
void prove_alive(Side& side, const char* rule) {
  const Comm comm = open_comm(side);
  stream(side, comm.get(), 2, 5000, 20);
  pass(rule);
  side.meet();
}

void orders(Side& side) {
  for (const bool a_is_first : {true, false}) {
    Listener listener;
    Comm comm;
    if (side.is_a()) {
      comm = open_sender(side);
    } else {
      listener = listen(side);
      side.say(listener.handle.span());
      comm = accept_from(side, listener);
    }
    stream(side, comm.get(), 10, 50000, 21);
    side.meet();
    if (side.is_a() == a_is_first) {
      check("teardown.orders", comm.close() == Result::kSuccess, "close failed");
      side.meet();
    } else {
      side.meet();
      check("teardown.orders", comm.close() == Result::kSuccess, "close after the peer failed");
    }
    // The listener last, although NCCL closes it first.
    check("teardown.orders", listener.comm.close() == Result::kSuccess, "closeListen failed");
    side.meet();
  }
}

/// Requests that have completed, most likely, and of which nobody asked.
void untested(Side& side) {
  Comm comm = open_comm(side);
  const GuardedBuffer buffer(4096);
  Registered registered(&side, comm.get(), buffer.span());
  for (int i = 0; i < 4; ++i) {
    post(side, comm.get(), buffer.span(), registered.mr());
  }
  side.meet();
  registered.release();
  check("teardown.untested", comm.close() == Result::kSuccess, "close failed");
  prove_alive(side, "teardown.untested");
}

/// After ncclCommAbort: registrations go first, then comms, and megabytes are on their way.
void in_flight(Side& side) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  for (int round = 0; round < 5; ++round) {
    Comm comm = open_comm(side);
    std::vector<GuardedBuffer> buffers;
    std::vector<Registered> registered;
    for (int i = 0; i < 8; ++i) {
      buffers.emplace_back(kBytes);
      registered.emplace_back(&side, comm.get(), buffers.back().span());
      void* request = nullptr;
      const Result result =
          try_post(side, comm.get(), buffers.back().span(), registered.back().mr(), &request);
      require("teardown.in-flight", result == Result::kSuccess, "request: %s", name_of(result));
    }
    side.meet();
    for (Registered& one : registered) {
      one.release();
    }
    // One side first, then the other, then both at once.
    if (round % 3 == 0 && side.is_a()) {
      side.meet();
    }
    check("teardown.in-flight", comm.close() == Result::kSuccess, "close failed");
    if (round % 3 == 0 && !side.is_a()) {
      side.meet();
    }
    side.meet();
  }
  prove_alive(side, "teardown.in-flight");
}

/// Tests `request` until it is an error.
void expect_error(Side& side, const char* rule, const Request& request) {
  side.poll(rule, "the error", [&] {
    bool done = false;
    const Result result = side.driver().test(request.pointer, &done, nullptr);
    require(rule, !done, "the request is done, and nothing was sent");
    return result != Result::kSuccess;
  });
}

void close_is_seen(Side& side) {
  Comm comm = open_comm(side);
  const GuardedBuffer buffer(4096);
  side.set_deadline(side.options().peer_limit_s);
  if (side.is_a()) {
    side.meet();
    check("teardown.close-is-seen", comm.close() == Result::kSuccess, "close failed");
  } else {
    Registered registered(&side, comm.get(), buffer.span());
    const Request request = post(side, comm.get(), buffer.span(), registered.mr());
    side.meet();
    expect_error(side, "teardown.close-is-seen", request);
    registered.release();
    check("teardown.close-is-seen", comm.close() == Result::kSuccess, "close failed");
  }
  side.set_deadline(side.options().limit_s);
  prove_alive(side, "teardown.close-is-seen");
}

/// B sleeps for two seconds with messages under way. A helper of B's wakes it up.
void peer_stopped(Side& side) {
  const Comm comm = open_comm(side);
  if (!side.is_a()) {
    const ::pid_t self = ::getpid();
    const ::pid_t helper = ::fork();
    if (helper == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      ::kill(self, SIGCONT);
      ::_exit(0);
    }
    side.meet();
    ::kill(self, SIGSTOP);
    int status = 0;
    ::waitpid(helper, &status, 0);
  } else {
    side.meet();
  }
  stream(side, comm.get(), 20, std::size_t{1} << 20, 22);
  pass("teardown.peer-stopped");
  side.meet();
}

/// B dies without a word; A has a send that needs it.
void peer_killed(Side& side) {
  const Comm comm = open_comm(side);
  if (!side.is_a()) {
    side.meet();
    ::kill(::getpid(), SIGKILL);
  }
  const GuardedBuffer buffer(std::size_t{1} << 20);
  const Registered registered(&side, comm.get(), buffer.span());
  side.meet();
  side.set_deadline(side.options().peer_limit_s);
  std::array<void*, 8> requests{};
  side.poll("teardown.peer-killed", "the error", [&] {
    for (void*& request : requests) {
      bool done = false;
      const Result result =
          request == nullptr ? try_post(side, comm.get(), buffer.span(), registered.mr(), &request)
                             : side.driver().test(request, &done, nullptr);
      if (result != Result::kSuccess) {
        return true;
      }
      request = done ? nullptr : request;
    }
    return false;
  });
  pass("teardown.peer-killed");
}

}  // namespace

std::span<const Case> teardown_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"teardown.orders", orders, {"teardown.orders"}},
      {"teardown.untested", untested, {"teardown.untested"}},
      {"teardown.in-flight", in_flight, {"teardown.in-flight"}},
      {"teardown.close-is-seen", close_is_seen, {"teardown.close-is-seen"}},
      {"teardown.peer-stopped", peer_stopped, {"teardown.peer-stopped"}, Needs::kProcesses},
      {"teardown.peer-killed", peer_killed, {"teardown.peer-killed"}, Needs::kProcesses},
  });
  return kCases;
}

}  // namespace net_conform
