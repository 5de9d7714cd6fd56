// Shared by the transports' tests: a pair of transports; a driver that sleeps only on wait_fd(), so
// that a lost wake-up fails the test instead of being hidden by polling; patterns; the promises of
// fragments.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc::transport_test {

/// Nothing here takes longer unless it hangs.
inline constexpr std::chrono::seconds kHang{60};

/// Moved by hand.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

/// Two transports, rank 0 sending to rank 1 on one channel.
struct TransportPair {
  TransportPair(std::unique_ptr<Transport> rank0, std::unique_ptr<Transport> rank1)
      : a(std::move(rank0)), b(std::move(rank1)) {}

  void open();
  std::vector<Transport*> both() const { return {a.get(), b.get()}; }

  ChannelId id{0, 1, 0, 0};
  std::unique_ptr<Transport> a;
  std::unique_ptr<Transport> b;
  std::unique_ptr<SendChannel> send;
  std::unique_ptr<RecvChannel> recv;
};

inline void expect_polls(Transport& transport, bool& moved) {
  auto polled = transport.poll();
  ASSERT_TRUE(polled.ok()) << polled.status().message();
  moved = *polled || moved;
}

/// Polls `times` times, whether there is something to do or not.
inline void poll_often(const std::vector<Transport*>& transports, int times) {
  for (int i = 0; i < times; ++i) {
    bool moved = false;
    for (Transport* transport : transports) {
      expect_polls(*transport, moved);
    }
  }
}

/// Polls until `done` says so, sleeping on the descriptors only, where there are any. False when
/// nothing woke it.
inline bool drive(const std::vector<Transport*>& transports, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kHang;
  while (!done()) {
    bool moved = false;
    for (Transport* transport : transports) {
      expect_polls(*transport, moved);
    }
    if (::testing::Test::HasFatalFailure() || std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    if (moved) {
      continue;
    }
    if (done()) {
      break;
    }
    std::vector<pollfd> fds;
    for (Transport* transport : transports) {
      transport->prepare_to_wait();
      fds.push_back({transport->wait_fd(), POLLIN, 0});
    }
    if (fds.front().fd < 0) {
      continue;
    }
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kHang).count();
    if (::poll(fds.data(), fds.size(), static_cast<int>(limit)) == 0) {
      ADD_FAILURE() << "no wait_fd() became readable";
      return false;
    }
  }
  return true;
}

inline bool is_readable(const Transport& transport) {
  pollfd fd{transport.wait_fd(), POLLIN, 0};
  return ::poll(&fd, 1, 0) == 1;
}

/// Polls until all have been quiet for a moment: what was under way on loopback has arrived.
inline void settle(const std::vector<Transport*>& transports) {
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<pollfd> fds;
    for (Transport* transport : transports) {
      expect_polls(*transport, moved);
      transport->prepare_to_wait();
      fds.push_back({transport->wait_fd(), POLLIN, 0});
    }
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    if (!moved) {
      moved = ::poll(fds.data(), fds.size(), 50) > 0;
    }
  }
}

/// Bytes that tell messages and positions apart.
inline Bytes pattern(std::size_t bytes, std::uint64_t seed) {
  Bytes out(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::byte& byte : out) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return out;
}

template <typename T>
T must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(result).value() : T{};
}

inline void TransportPair::open() {
  send = must(a->connect(b->handle(), id));
  recv = must(b->accept(id));
}

/// Sizes of messages around the seams of a transport that cuts them into pieces of `piece_bytes`.
inline std::vector<std::size_t> seam_sizes(std::size_t piece_bytes) {
  return {0,
          1,
          63,
          64,
          65,
          piece_bytes - 1,
          0,
          piece_bytes,
          piece_bytes + 1,
          3 * piece_bytes + 100,
          8 * piece_bytes,
          (std::size_t{5} << 20) + 7,
          0};
}

inline std::vector<Bytes> make_messages(const std::vector<std::size_t>& sizes) {
  std::vector<Bytes> out;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out.push_back(pattern(sizes[i], i));
  }
  return out;
}

/// Takes what fragments there are and copies them into `into`, checking each one's promises.
inline bool take_fragments(RecvChannel& channel, RequestId request, Bytes& into) {
  while (true) {
    auto fragment = channel.next_fragment(request);
    if (!fragment.ok()) {
      ADD_FAILURE() << fragment.status().message();
      return true;
    }
    if (!fragment->has_value()) {
      break;
    }
    const Fragment& piece = **fragment;
    EXPECT_EQ(piece.offset % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.bytes.data()) % 64, 0U);
    EXPECT_FALSE(piece.bytes.empty());
    EXPECT_LE(piece.offset + piece.bytes.size(), into.size());
    EXPECT_TRUE(piece.bytes.size() % 64 == 0 || piece.offset + piece.bytes.size() == into.size());
    for (std::size_t i = 0; i < piece.bytes.size(); ++i) {
      into[piece.offset + i] ^= piece.bytes[i];  // A byte that comes twice cancels itself.
    }
    channel.release(piece);
  }
  return must(channel.test(request));
}

}  // namespace lightcc::transport_test
