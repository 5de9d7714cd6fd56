// Frames over sockets and over rings: whole, in order, and the last one before the end.
#include "lightcc/engine/control_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::control_link_test {
namespace {

constexpr int kPeerOfA = 7;
constexpr int kPeerOfB = 3;

struct Pair {
  std::unique_ptr<ControlLink> a;
  std::unique_ptr<ControlLink> b;
};

std::array<UniqueFd, 2> socket_pair() {
  std::array<int, 2> fds{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Pair socket_links() {
  auto [one, other] = socket_pair();
  return {std::make_unique<ControlLink>(make_socket_stream(std::move(one)), kPeerOfA),
          std::make_unique<ControlLink>(make_socket_stream(std::move(other)), kPeerOfB)};
}

/// Two rings in plain memory: what shared memory looks like to both ends.
class Rings {
 public:
  static constexpr std::size_t kCapacity = 256;

  std::span<std::byte> up() { return std::as_writable_bytes(std::span(up_)); }
  std::span<std::byte> down() { return std::as_writable_bytes(std::span(down_)); }
  Pair links() {
    return {std::make_unique<ControlLink>(
                make_ring_stream(
                    ByteRingReader(down(), kCapacity), ByteRingWriter(up(), kCapacity), Doorbell()),
                kPeerOfA),
            std::make_unique<ControlLink>(
                make_ring_stream(
                    ByteRingReader(up(), kCapacity), ByteRingWriter(down(), kCapacity), Doorbell()),
                kPeerOfB)};
  }

 private:
  // A header's size divides what a ring needs, and its alignment is the ring's.
  static_assert(byte_ring_bytes(kCapacity) == 2 * sizeof(ByteRingHeader));
  std::array<ByteRingHeader, 2> up_{};
  std::array<ByteRingHeader, 2> down_{};
};

void expect_nothing(ControlLink& link) {
  auto received = link.receive();
  ASSERT_TRUE(received.ok()) << received.status().message();
  EXPECT_FALSE(received->has_value());
}

void expect_frame(ControlLink& link, const Frame& frame) {
  auto received = link.receive();
  ASSERT_TRUE(received.ok()) << received.status().message();
  ASSERT_TRUE(received->has_value());
  EXPECT_EQ(**received, frame);
}

void expect_failed(const Status& status, int rank) {
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(status.rank(), rank);
  EXPECT_NE(status.message().find("rank " + std::to_string(rank)), std::string::npos)
      << status.message();
}

/// The end of a socket is heard of when it is read again.
void expect_gone(ControlLink& link, int rank) {
  auto received = link.receive();
  if (received.ok()) {
    EXPECT_FALSE(received->has_value());
    received = link.receive();
  }
  expect_failed(received.status(), rank);
}

WorldError text_of(std::size_t bytes) {
  return {ErrorCode::kTimeout, 1, std::string(bytes, 'x')};
}

/// Sends `frames` from one end while the other end reads, until all have arrived.
void expect_all_arrive(Pair& pair, const std::vector<Frame>& frames) {
  for (const Frame& frame : frames) {
    ASSERT_TRUE(pair.a->send(frame, false).ok());
  }
  std::size_t next = 0;
  for (int idle = 0; next < frames.size() && idle < 3;) {
    const auto moved = pair.a->flush();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    auto received = pair.b->receive();
    ASSERT_TRUE(received.ok()) << received.status().message();
    idle = received->has_value() || moved.value() ? 0 : idle + 1;
    if (received->has_value()) {
      ASSERT_EQ(**received, frames[next]);
      ++next;
    }
  }
  EXPECT_EQ(next, frames.size());
  EXPECT_FALSE(pair.a->has_backlog());
}

std::vector<Frame> frames_of_many_sizes() {
  std::mt19937 random(11);
  std::vector<Frame> frames;
  for (int i = 0; i < 300; ++i) {
    if (i % 5 == 0) {
      frames.emplace_back(Heartbeat{});
    } else {
      frames.emplace_back(text_of(random() % (i % 7 == 0 ? 60'000 : 300)));
    }
  }
  std::vector<Report> reports;
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    reports.push_back({i, ReadySlot{i}});
  }
  frames.emplace_back(std::move(reports));
  return frames;
}

TEST(ControlLinkTest, frames_arrive_whole_and_in_order_over_a_socket) {
  Pair pair = socket_links();
  EXPECT_GE(pair.a->fd(), 0);
  EXPECT_EQ(pair.a->peer_rank(), kPeerOfA);
  expect_nothing(*pair.b);
  expect_all_arrive(pair, frames_of_many_sizes());
  expect_nothing(*pair.b);
}

TEST(ControlLinkTest, frames_larger_than_the_ring_arrive_whole_and_in_order) {
  Rings rings;
  Pair pair = rings.links();
  EXPECT_EQ(pair.a->fd(), -1);
  expect_nothing(*pair.b);
  expect_all_arrive(pair, frames_of_many_sizes());
  expect_nothing(*pair.b);
}

TEST(ControlLinkTest, both_directions_are_independent) {
  Rings rings;
  Pair pair = rings.links();
  ASSERT_TRUE(pair.a->send(text_of(5000), false).ok());
  EXPECT_TRUE(pair.a->has_backlog());
  ASSERT_TRUE(pair.b->send(Heartbeat{}, false).ok());
  EXPECT_FALSE(pair.b->has_backlog());
  expect_frame(*pair.a, Heartbeat{});
}

TEST(ControlLinkTest, flush_says_whether_anything_moved) {
  Rings rings;
  Pair pair = rings.links();
  EXPECT_FALSE(pair.a->flush().value());
  ASSERT_TRUE(pair.a->send(text_of(1000), false).ok());
  EXPECT_TRUE(pair.a->has_backlog());
  EXPECT_FALSE(pair.a->flush().value()) << "the ring is full";
  expect_nothing(*pair.b);  // Part of a frame; makes room.
  EXPECT_TRUE(pair.a->flush().value());
}

TEST(ControlLinkTest, the_last_frames_are_delivered_before_the_peer_is_gone) {
  Pair pair = socket_links();
  ASSERT_TRUE(pair.a->send(Heartbeat{}, false).ok());
  ASSERT_TRUE(pair.a->send(text_of(30'000), false).ok());
  ASSERT_FALSE(pair.a->has_backlog());
  pair.a.reset();
  expect_frame(*pair.b, Heartbeat{});
  expect_frame(*pair.b, text_of(30'000));
  expect_gone(*pair.b, kPeerOfB);
}

TEST(ControlLinkTest, the_last_frame_survives_that_sending_to_its_sender_failed) {
  Pair pair = socket_links();
  ASSERT_TRUE(pair.a->send(text_of(10), false).ok());
  pair.a.reset();
  expect_failed(pair.b->send(Heartbeat{}, false), kPeerOfB);
  expect_frame(*pair.b, text_of(10));
  expect_gone(*pair.b, kPeerOfB);
}

TEST(ControlLinkTest, a_peer_that_closes_within_a_frame_is_gone) {
  auto [one, other] = socket_pair();
  ControlLink link(make_socket_stream(std::move(other)), kPeerOfB);
  Bytes bytes;
  encode_frame(text_of(100), bytes);
  ASSERT_EQ(::send(one.get(), bytes.data(), bytes.size() - 1, MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size() - 1));
  expect_nothing(link);
  one.reset();
  expect_gone(link, kPeerOfB);
}

TEST(ControlLinkTest, bytes_that_come_one_by_one_make_the_same_frames) {
  auto [one, other] = socket_pair();
  ControlLink link(make_socket_stream(std::move(other)), kPeerOfB);
  Bytes bytes;
  encode_frame(text_of(20), bytes);
  const std::size_t first = bytes.size();
  encode_frame(Heartbeat{}, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(::send(one.get(), &bytes[i], 1, MSG_NOSIGNAL), 1);
    if (i + 1 == first) {
      expect_frame(link, text_of(20));
    } else if (i + 1 == bytes.size()) {
      expect_frame(link, Heartbeat{});
    } else {
      expect_nothing(link);
    }
  }
}

/// Counts the system calls that a socket would have had.
class CountedStream final : public ByteStream {
 public:
  CountedStream(std::unique_ptr<ByteStream> stream, int& reads)
      : stream_(std::move(stream)), reads_(reads) {}
  Result<std::size_t> read_some(std::span<std::byte> into) override {
    ++reads_;
    return stream_->read_some(into);
  }
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
    return stream_->write_some(bytes);
  }
  void wake_peer(bool urgent) override { stream_->wake_peer(urgent); }
  void finish_writing() override { stream_->finish_writing(); }
  int fd() const override { return stream_->fd(); }

 private:
  std::unique_ptr<ByteStream> stream_;
  int& reads_;
};

TEST(ControlLinkTest, a_socket_that_was_read_empty_is_not_read_again_at_once) {
  auto [one, other] = socket_pair();
  int reads = 0;
  ControlLink from(make_socket_stream(std::move(one)), kPeerOfA);
  ControlLink to(std::make_unique<CountedStream>(make_socket_stream(std::move(other)), reads),
                 kPeerOfB);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(from.send(Heartbeat{}, false).ok());
    ASSERT_TRUE(from.send(text_of(20), false).ok());
    expect_frame(to, Heartbeat{});
    expect_frame(to, text_of(20));
    expect_nothing(to);
    EXPECT_EQ(reads, round);
  }
}

TEST(ControlLinkTest, nonsense_is_refused_and_names_the_peer) {
  constexpr std::uint32_t kTooLong = kMaxFrameBytes + 1;
  std::array<char, 4> too_long{};
  std::memcpy(too_long.data(), &kTooLong, sizeof(kTooLong));
  const std::string cases[] = {std::string(too_long.data(), too_long.size()),
                               std::string("\xff\xff\xff\xff", 4),
                               std::string("\0\0\0\0", 4),
                               std::string("\1\0\0\0\x63", 5),
                               "GET / HTTP/1.1\r\n\r\n"};
  for (const std::string& text : cases) {
    auto [one, other] = socket_pair();
    ControlLink link(make_socket_stream(std::move(other)), kPeerOfB);
    ASSERT_EQ(::send(one.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    expect_failed(link.receive().status(), kPeerOfB);
  }
}

TEST(ControlLinkTest, a_ring_whose_counters_were_damaged_is_a_failed_peer) {
  Rings rings;
  Pair pair = rings.links();
  const std::uint64_t impossible = Rings::kCapacity + 1;
  std::memcpy(rings.up().data(), &impossible, sizeof(impossible));  // `written` comes first.
  expect_failed(pair.b->receive().status(), kPeerOfB);
}

}  // namespace
}  // namespace lightcc::control_link_test
