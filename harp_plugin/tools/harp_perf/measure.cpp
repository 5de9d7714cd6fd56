#include "measure.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.hpp"
#include "link.hpp"

namespace harp_perf {
namespace {

using Clock = std::chrono::steady_clock;

/// Polls without success before the other end of a core gets it.
constexpr int kPolls = 2000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The first and last eight bytes of a message are its number.
void stamp(std::span<std::byte> message, std::uint64_t number) {
  const std::size_t bytes = std::min(message.size(), sizeof(number));
  std::memcpy(message.data(), &number, bytes);
  std::memcpy(message.data() + message.size() - bytes, &number, bytes);
}

/// What a buffer holds, but for the stamp: the same at both ends.
void fill(std::span<std::byte> message, std::size_t buffer) {
  harp::Rng random(buffer);
  for (std::byte& byte : message) {
    byte = static_cast<std::byte>(random());
  }
}

bool has_stamp(std::span<const std::byte> message, std::uint64_t number) {
  const std::size_t bytes = std::min(message.size(), sizeof(number));
  return std::memcmp(message.data(), &number, bytes) == 0 &&
         std::memcmp(message.data() + message.size() - bytes, &number, bytes) == 0;
}

void require(bool is_right, std::size_t number, std::size_t bytes) {
  if (!is_right) {
    throw std::runtime_error("message " + std::to_string(number) + " of " + std::to_string(bytes) +
                             " bytes is not what was sent");
  }
}

template <typename Attempt>
void poll(const Attempt& attempt) {
  for (int polls = 0; !attempt(); ++polls) {
    if (polls == kPolls) {
      std::this_thread::yield();
      polls = 0;
    }
  }
}

}  // namespace

Messages make_messages(std::size_t bytes, std::size_t window, bool is_sender) {
  Messages messages(window, std::vector<std::byte>(bytes));
  for (std::size_t i = 0; is_sender && i < window; ++i) {
    fill(messages[i], i);
  }
  return messages;
}

Usage stream(Link& link, bool is_sender, Messages& messages, std::size_t count) {
  const std::size_t window = messages.size();
  const auto finish = [&](std::size_t number) {
    poll([&] { return link.is_done(number % window); });
    const std::vector<std::byte>& message = messages[number % window];
    require(is_sender || has_stamp(message, number), number, message.size());
  };
  const double cpu_before = cpu_seconds();
  const auto begin = Clock::now();
  for (std::size_t number = 0; number < count; ++number) {
    std::vector<std::byte>& message = messages[number % window];
    if (number >= window) {
      finish(number - window);
    }
    if (is_sender) {
      stamp(message, number);
    }
    poll([&] { return link.post(message, number % window); });
  }
  const std::size_t last = count - std::min(count, window);
  for (std::size_t number = last; number < count; ++number) {
    finish(number);
  }
  return {.wall_s = seconds_since(begin), .cpu_s = cpu_seconds() - cpu_before};
}

void check_last(const Messages& messages, std::size_t count) {
  const std::size_t window = messages.size();
  for (std::size_t number = count - std::min(count, window); number < count; ++number) {
    std::vector<std::byte> expected(messages[number % window].size());
    fill(expected, number % window);
    stamp(expected, number);
    require(messages[number % window] == expected, number, expected.size());
  }
}

std::vector<double> ping_pong(const Ends& ends, std::size_t bytes, std::size_t count) {
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  fill(out, 0);
  std::vector<double> round_trips;
  for (std::size_t number = 0; number < count; ++number) {
    stamp(out, number);
    const auto begin = Clock::now();
    poll([&] { return ends.out->post(out, 0); });
    poll([&] { return ends.in->post(in, 0); });
    bool sent = false;  // What is beyond a socket's buffer leaves when it is asked for.
    poll([&] {
      sent = sent || ends.out->is_done(0);
      return ends.in->is_done(0);
    });
    round_trips.push_back(seconds_since(begin));
    poll([&] { return sent || ends.out->is_done(0); });
    require(in == out, number, bytes);
  }
  std::ranges::sort(round_trips);
  return round_trips;
}

void echo(const Ends& ends, std::size_t bytes, std::size_t count) {
  Messages messages(2, std::vector<std::byte>(bytes));
  std::array<bool, 2> is_sent = {true, true};
  const auto look = [&](std::size_t slot) {
    is_sent[slot] = is_sent[slot] || ends.out->is_done(slot);
    return is_sent[slot];
  };
  poll([&] { return ends.in->post(messages[0], 0); });
  for (std::size_t number = 0; number < count; ++number) {
    const std::size_t slot = number % 2;
    const std::size_t next = 1 - slot;
    poll([&] {
      (void)look(next);
      return ends.in->is_done(slot);
    });
    poll([&] { return ends.out->post(messages[slot], slot); });
    is_sent[slot] = false;
    poll([&] { return look(next); });
    if (number + 1 < count) {
      poll([&] { return ends.in->post(messages[next], next); });
    }
  }
  poll([&] { return look(0) && look(1); });
}

}  // namespace harp_perf
