// Requests, one by one: what it takes to complete one, and what it means that it is complete.
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "cases.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace net_conform {
namespace {

/// Requests until the comm takes no more, or as many as NCCL may have; then everything arrives.
void full(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kBytes = 100000;
  const auto maximum = static_cast<std::size_t>(side.driver().max_requests());
  std::vector<GuardedBuffer> buffers;
  std::vector<Request> requests;
  for (std::size_t i = 0; i < maximum; ++i) {
    buffers.emplace_back(kBytes);
    if (side.is_a()) {
      fill_pattern(buffers[i].span(), 7, i);
    }
  }
  Registered registered(&side, comm.get(), buffers[0].span());
  for (std::size_t i = 0; i < maximum; ++i) {
    Request request{nullptr, kBytes};
    const Result result =
        try_post(side, comm.get(), buffers[i].span(), registered.mr(), &request.pointer);
    require("data.full", result == Result::kSuccess, "request %zu: %s", i, name_of(result));
    if (request.pointer == nullptr) {
      break;
    }
    requests.push_back(request);
  }
  require("data.full", !requests.empty(), "not one request was taken");
  // Both sides go on with as many as the one that took fewer.
  side.say(std::as_bytes(std::span(requests)));
  const std::size_t common = std::min(requests.size(), side.hear().size() / sizeof(Request));
  for (std::size_t i = 0; i < common; ++i) {
    finish(side, requests[i], "data.full");
    if (!side.is_a()) {
      const std::string difference = find_difference(buffers[i].span(), 7, i);
      check("data.full", difference.empty(), "%s", difference.c_str());
    }
  }
  side.meet();
}

/// A sends and only then B posts, with pauses in which the other thread has every chance.
void sender_first(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kBytes = 20000;
  const GuardedBuffer buffer(kBytes);
  const Registered registered(&side, comm.get(), buffer.span());
  for (std::uint64_t i = 0; i < 20; ++i) {
    if (side.is_a()) {
      fill_pattern(buffer.span(), 8, i);
    } else {
      side.meet();  // A has posted.
    }
    const Request request = post(side, comm.get(), buffer.span(), registered.mr());
    if (side.is_a()) {
      side.meet();
    }
    finish(side, request, "data.sender-first");
    if (!side.is_a()) {
      const std::string difference = find_difference(buffer.span(), 8, i);
      check("data.sender-first", difference.empty(), "%s", difference.c_str());
    }
  }
  side.meet();
}

/// B posts two receives; one message completes the first and, however often it is tested, only
/// that.
void one_each(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kBytes = 3000;
  if (side.is_a()) {
    const GuardedBuffer buffer(kBytes);
    const Registered registered(&side, comm.get(), buffer.span());
    for (std::uint64_t i = 0; i < 2; ++i) {
      side.meet();
      fill_pattern(buffer.span(), 9, i);
      finish(side, post(side, comm.get(), buffer.span(), registered.mr()), "data.one-each");
    }
    side.meet();
    return;
  }
  const std::array<GuardedBuffer, 2> buffers{GuardedBuffer(kBytes), GuardedBuffer(kBytes)};
  const Registered first_registered(&side, comm.get(), buffers[0].span());
  const Registered second_registered(&side, comm.get(), buffers[1].span());
  const Request first = post(side, comm.get(), buffers[0].span(), first_registered.mr());
  const Request second = post(side, comm.get(), buffers[1].span(), second_registered.mr());
  const auto stays_open = [&](const Request& request, const char* what) {
    for (int i = 0; i < 100; ++i) {
      bool done = false;
      require("data.one-each",
              side.driver().test(request.pointer, &done, nullptr) == Result::kSuccess && !done,
              "%s",
              what);
      ::sched_yield();
    }
  };
  stays_open(first, "a receive is done and nothing was sent");
  side.meet();
  check("data.receiver-first",
        finish(side, first, "data.receiver-first") == static_cast<int>(kBytes),
        "a size is wrong");
  stays_open(second, "one message completed two receives");
  side.meet();
  finish(side, second, "data.one-each");
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::string difference = find_difference(buffers[i].span(), 9, i);
    check("data.one-each", difference.empty(), "%s", difference.c_str());
  }
  side.meet();
}

void test_any_order(Side& side) {
  const Comm comm = open_comm(side);
  run_stream(side,
             comm.get(),
             equal_messages(64, 30000, 40000),
             {.seed = 10, .content = "data.test-any-order", .tests_newest_first = true});
  pass("data.test-any-order");
  side.meet();
}

void sizes_null(Side& side) {
  const Comm comm = open_comm(side);
  run_stream(side,
             comm.get(),
             equal_messages(16, 3000, 3000),
             {.seed = 11, .content = "data.sizes-null", .wants_sizes = false});
  pass("data.sizes-null");
  side.meet();
}

/// One size for one buffer, also where NCCL hands in room for 64.
void size_slots(Side& side) {
  const Comm comm = open_comm(side);
  const GuardedBuffer buffer(512);
  const Registered registered(&side, comm.get(), buffer.span());
  if (side.is_a()) {
    fill_pattern(buffer.span(), 12, 0);
  }
  const Request request = post(side, comm.get(), buffer.span(), registered.mr());
  std::array<int, 64> reported{};
  reported.fill(-1);
  side.poll("data.size-slots", "a request", [&] {
    bool done = false;
    const Result result = side.driver().test(request.pointer, &done, reported.data());
    require("data.size-slots", result == Result::kSuccess, "test: %s", name_of(result));
    return done;
  });
  check("data.size-slots",
        reported[0] == 512 &&
            std::all_of(reported.begin() + 1, reported.end(), [](int size) { return size == -1; }),
        "the first size is %d, and others may have changed",
        reported[0]);
  side.meet();
}

/// B is late, so that what A sends piles up; A overwrites every buffer once it is said to be sent.
void sent_is_free(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  constexpr std::size_t kCount = 8;
  if (!side.is_a()) {
    side.hear();
    run_stream(side,
               comm.get(),
               equal_messages(kCount, kBytes, kBytes),
               {.seed = 13, .content = "data.sent-is-free"});
    pass("data.sent-is-free");
    side.meet();
    return;
  }
  std::vector<GuardedBuffer> buffers;
  std::vector<Registered> registered;
  std::vector<Request> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    buffers.emplace_back(kBytes);
    fill_pattern(buffers[i].span(), 13, i);
    registered.emplace_back(&side, comm.get(), buffers[i].span());
  }
  // As much as goes without the receiver, which then gets started.
  bool b_is_started = false;
  std::vector<bool> is_done(kCount, false);
  side.poll("data.sent-is-free", "sending", [&] {
    if (requests.size() < kCount) {
      const std::size_t i = requests.size();
      Request request{nullptr, kBytes};
      const Result result =
          try_post(side, comm.get(), buffers[i].span(), registered[i].mr(), &request.pointer);
      require("data.sent-is-free", result == Result::kSuccess, "isend: %s", name_of(result));
      if (request.pointer != nullptr) {
        requests.push_back(request);
      }
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!is_done[i]) {
        bool done = false;
        const Result result = side.driver().test(requests[i].pointer, &done, nullptr);
        require("data.sent-is-free", result == Result::kSuccess, "test: %s", name_of(result));
        if (done) {
          is_done[i] = true;
          std::ranges::fill(buffers[i].span(), std::byte{0xEE});
        }
      }
    }
    if (!b_is_started) {
      b_is_started = true;
      side.say({});
    }
    return std::ranges::count(is_done, true) == static_cast<std::ptrdiff_t>(kCount);
  });
  side.meet();
}

/// The comm is lost, the memory behind the buffer is not.
void too_large(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kPosted = 1000;
  constexpr std::size_t kSent = 300000;
  const GuardedBuffer buffer(side.is_a() ? kSent : kPosted);
  Registered registered(&side, comm.get(), buffer.span());
  if (side.is_a()) {
    const Request request = post(side, comm.get(), buffer.span(), registered.mr());
    side.say({});
    // Done, an error, or neither: the receiver is the one who knows. It says when it does.
    for (bool is_reported = false; !is_reported;) {
      bool done = false;
      if (side.driver().test(request.pointer, &done, nullptr) != Result::kSuccess || done) {
        side.hear();
        is_reported = true;
      } else {
        require("data.too-large",
                std::chrono::steady_clock::now() < side.deadline(),
                "neither done nor an error");
        ::sched_yield();
      }
    }
    side.meet();
    return;
  }
  side.hear();
  void* request = nullptr;
  Result result = Result::kSuccess;
  side.poll("data.too-large", "the error of a message that is too large", [&] {
    bool done = false;
    if (request == nullptr) {
      result = try_post(side, comm.get(), buffer.span(), registered.mr(), &request);
    } else {
      result = side.driver().test(request, &done, nullptr);
    }
    require("data.too-large", !done, "the receive is done, with a buffer too small");
    return result != Result::kSuccess;
  });
  pass("data.too-large");
  side.say({});
  side.meet();
}

void flush(Side& side) {
  const Comm comm = open_comm(side);
  run_stream(side, comm.get(), equal_messages(1, 4096, 4096), {.seed = 15});
  if (!side.is_a()) {
    const GuardedBuffer buffer(4096);
    const Registered registered(&side, comm.get(), buffer.span());
    void* data = buffer.data();
    int bytes = 4096;
    void* mr = registered.mr();
    Request request;
    const Result result = side.driver().iflush(comm.get(), 1, &data, &bytes, &mr, &request.pointer);
    // NCCL calls it for GPU memory only, so that a plugin without may say so.
    const bool has_gpu_memory = (side.properties().ptr_support & ~harp::abi::kPtrHost) != 0;
    check(
        "data.flush", result == Result::kSuccess || !has_gpu_memory, "iflush: %s", name_of(result));
    if (result == Result::kSuccess && request.pointer != nullptr) {
      side.poll("data.flush", "the flush", [&] {
        bool done = false;
        const Result tested = side.driver().test(request.pointer, &done, nullptr);
        require("data.flush", tested == Result::kSuccess, "test: %s", name_of(tested));
        return done;
      });
    }
  }
  side.meet();
}

}  // namespace

std::span<const Case> request_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"data.full", full, {"data.full"}},
      {"data.sender-first", sender_first, {"data.sender-first"}},
      {"data.one-each", one_each, {"data.one-each", "data.receiver-first"}},
      {"data.test-any-order", test_any_order, {"data.test-any-order"}},
      {"data.sizes-null", sizes_null, {"data.sizes-null"}},
      {"data.size-slots", size_slots, {"data.size-slots"}},
      {"data.sent-is-free", sent_is_free, {"data.sent-is-free"}},
      {"data.too-large", too_large, {"data.too-large"}},
      {"data.flush", flush, {"data.flush"}},
  });
  return kCases;
}

}  // namespace net_conform
