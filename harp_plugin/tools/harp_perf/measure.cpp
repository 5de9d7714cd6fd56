#include "measure.hpp"

#include <sys/resource.h>

#include <algorithm>
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

/// Messages that are compared as a whole.
constexpr std::size_t kCompared = 16;
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

void fill(std::span<std::byte> message, std::uint64_t number) {
  harp::Rng random(number);
  for (std::byte& byte : message) {
    byte = static_cast<std::byte>(random());
  }
  stamp(message, number);
}

bool is_message(std::span<const std::byte> message, std::uint64_t number) {
  if (number < kCompared) {
    std::vector<std::byte> expected(message.size());
    fill(expected, number);
    return std::ranges::equal(expected, message);
  }
  const std::size_t bytes = std::min(message.size(), sizeof(number));
  return std::memcmp(message.data(), &number, bytes) == 0 &&
         std::memcmp(message.data() + message.size() - bytes, &number, bytes) == 0;
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

Usage stream(Link& link, bool is_sender, std::size_t bytes, std::size_t count, std::size_t window) {
  std::vector<std::vector<std::byte>> buffers(window, std::vector<std::byte>(bytes));
  const auto finish = [&](std::size_t number) {
    poll([&] { return link.is_done(number % window); });
    if (!is_sender && !is_message(buffers[number % window], number)) {
      throw std::runtime_error("message " + std::to_string(number) + " of " +
                               std::to_string(bytes) + " bytes is not what was sent");
    }
  };
  const double cpu_before = cpu_seconds();
  const auto begin = Clock::now();
  for (std::size_t number = 0; number < count; ++number) {
    std::vector<std::byte>& buffer = buffers[number % window];
    if (number >= window) {
      finish(number - window);
    }
    if (is_sender) {
      number < kCompared ? fill(buffer, number) : stamp(buffer, number);
    }
    poll([&] { return link.post(buffer, number % window); });
  }
  for (std::size_t number = count - std::min(count, window); number < count; ++number) {
    finish(number);
  }
  return {.wall_s = seconds_since(begin), .cpu_s = cpu_seconds() - cpu_before};
}

std::vector<double> ping_pong(const Ends& ends,
                              bool is_first,
                              std::size_t bytes,
                              std::size_t count) {
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> in(bytes);
  std::vector<double> round_trips;
  const auto send = [&] {
    poll([&] { return ends.out->post(out, 0); });
    poll([&] { return ends.out->is_done(0); });
  };
  bool sent = true;  // What is beyond a socket's buffer leaves when it is asked for.
  const auto receive = [&](std::size_t number) {
    poll([&] {
      sent = sent || ends.out->is_done(0);
      return ends.in->is_done(0);
    });
    stamp(out, number);
    if (out != in) {
      throw std::runtime_error("round trip " + std::to_string(number) + " brought something else");
    }
  };
  for (std::size_t number = 0; number < count; ++number) {
    stamp(out, number);
    const auto begin = Clock::now();
    poll([&] { return ends.in->post(in, 0); });
    if (is_first) {
      poll([&] { return ends.out->post(out, 0); });
      sent = false;
      receive(number);
      round_trips.push_back(seconds_since(begin));
      if (!sent) {
        poll([&] { return ends.out->is_done(0); });
      }
    } else {
      receive(number);
      send();
    }
  }
  std::ranges::sort(round_trips);
  return round_trips;
}

}  // namespace harp_perf
