#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/shm/segment.hpp"

namespace lightcc::shm_segment_test {
namespace {

struct Sockets {
  explicit Sockets(int type) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds), 0);
    a = UniqueFd(fds[0]);
    b = UniqueFd(fds[1]);
  }
  UniqueFd a;
  UniqueFd b;
};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

UniqueFd duplicate(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

const std::vector<std::byte> kPayload(16, std::byte{7});

TEST(ShmSegment, is_zeroed_allocated_and_closed_on_exec) {
  auto segment = ShmSegment::create(100'000);
  ASSERT_TRUE(segment.ok()) << segment.status().message();
  ASSERT_EQ(segment->memory().size(), 100'000U);
  EXPECT_TRUE(
      std::ranges::all_of(segment->memory(), [](std::byte b) { return b == std::byte{0}; }));
  struct stat info{};
  ASSERT_EQ(::fstat(segment->fd(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 100'000);
  EXPECT_NE(::fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(ShmSegment, cannot_be_shrunk) {
  auto segment = ShmSegment::create(8192);
  ASSERT_TRUE(segment.ok());
  EXPECT_NE(::ftruncate(segment->fd(), 0), 0);
}

TEST(ShmSegment, two_mappings_share_bytes) {
  auto first = ShmSegment::create(4096);
  ASSERT_TRUE(first.ok());
  auto second = ShmSegment::map(duplicate(first->fd()), 4096);
  ASSERT_TRUE(second.ok()) << second.status().message();
  first->memory()[17] = std::byte{42};
  EXPECT_EQ(second->memory()[17], std::byte{42});
}

TEST(ShmSegment, what_is_not_a_sealed_segment_of_the_size_is_refused) {
  auto segment = ShmSegment::create(4096);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(ShmSegment::map(duplicate(segment->fd()), 4097).status().code(),
            ErrorCode::kPeerFailed);
  EXPECT_EQ(ShmSegment::map(duplicate(segment->fd()), 0).status().code(), ErrorCode::kPeerFailed);
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(ShmSegment::map(std::move(unsealed), 4096).status().code(), ErrorCode::kPeerFailed);
  UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(ShmSegment::map(std::move(device), 4096).status().code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(ShmSegment::map(UniqueFd(), 4096).status().code(), ErrorCode::kPeerFailed);
}

TEST(ShmSegment, more_than_the_machine_has_is_an_error_that_names_the_bytes) {
  auto segment = ShmSegment::create(std::size_t{1} << 60);
  ASSERT_FALSE(segment.ok());
  EXPECT_EQ(segment.status().code(), ErrorCode::kSystem);
  EXPECT_NE(segment.status().message().find("1152921504606846976 bytes"), std::string::npos);
  EXPECT_NE(segment.status().message().find("raise the memory limit"), std::string::npos);
}

TEST(ShmSegment, a_refusal_by_the_system_is_an_error_and_not_a_signal_later) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 65536, .rlim_max = 65536};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
      ::_exit(2);
    }
    auto refused = ShmSegment::create(1 << 20);
    auto granted = ShmSegment::create(65536);
    const bool right = !refused.ok() && refused.status().code() == ErrorCode::kSystem &&
                       refused.status().message().find("1048576 bytes") != std::string::npos &&
                       granted.ok();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ShmSegment, nothing_stays_open_or_mapped_after_it) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    auto segment = ShmSegment::create(65536);
    ASSERT_TRUE(segment.ok());
    ShmSegment moved = std::move(segment).value();
    moved = ShmSegment();
    EXPECT_EQ(moved.fd(), -1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(PassFds, a_segment_arrives_with_its_payload) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    Sockets sockets(type);
    auto segment = ShmSegment::create(4096);
    ASSERT_TRUE(segment.ok());
    const int fds[] = {segment->fd(), sockets.a.get()};
    auto sent = send_fds(sockets.a.get(), kPayload, fds);
    ASSERT_TRUE(sent.ok() && *sent) << sent.status().message();
    std::vector<std::byte> payload(16);
    auto received = recv_fds(sockets.b.get(), payload, 2);
    ASSERT_TRUE(received.ok()) << received.status().message();
    ASSERT_TRUE(received->has_value());
    ReceivedFds& message = received->value();
    EXPECT_EQ(message.payload_bytes, 16U);
    EXPECT_EQ(payload, kPayload);
    ASSERT_EQ(message.fds.size(), 2U);
    EXPECT_NE(::fcntl(message.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
    auto mapped = ShmSegment::map(std::move(message.fds[0]), 4096);
    ASSERT_TRUE(mapped.ok());
    segment->memory()[5] = std::byte{9};
    EXPECT_EQ(mapped->memory()[5], std::byte{9});
  }
}

TEST(PassFds, as_many_as_the_kernel_allows_arrive) {
  Sockets sockets(SOCK_STREAM);
  const std::vector<int> fds(kMaxPassedFds, sockets.a.get());
  auto sent = send_fds(sockets.a.get(), kPayload, fds);
  ASSERT_TRUE(sent.ok() && *sent);
  std::vector<std::byte> payload(16);
  auto received = recv_fds(sockets.b.get(), payload, kMaxPassedFds);
  ASSERT_TRUE(received.ok() && received->has_value());
  EXPECT_EQ(received->value().fds.size(), kMaxPassedFds);
}

TEST(PassFds, nothing_yet_and_no_room_are_not_errors) {
  Sockets sockets(SOCK_STREAM);
  std::vector<std::byte> payload(16);
  auto received = recv_fds(sockets.b.get(), payload, 1);
  ASSERT_TRUE(received.ok());
  EXPECT_FALSE(received->has_value());
  bool full = false;
  for (int i = 0; i < 100'000 && !full; ++i) {
    auto sent = send_fds(sockets.a.get(), kPayload, {});
    ASSERT_TRUE(sent.ok());
    full = !*sent;
  }
  EXPECT_TRUE(full);
}

TEST(PassFds, a_closed_peer_is_peer_failed) {
  Sockets sockets(SOCK_STREAM);
  sockets.b.reset();
  std::vector<std::byte> payload(16);
  EXPECT_EQ(recv_fds(sockets.a.get(), payload, 1).status().code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(send_fds(sockets.a.get(), kPayload, {}).status().code(), ErrorCode::kPeerFailed);
}

TEST(PassFds, descriptors_beyond_the_expected_are_an_error_and_are_closed) {
  Sockets sockets(SOCK_STREAM);
  const int fds[] = {sockets.a.get(), sockets.a.get(), sockets.a.get()};
  const std::size_t before = open_descriptors();
  ASSERT_TRUE(send_fds(sockets.a.get(), kPayload, fds).ok());
  std::vector<std::byte> payload(16);
  EXPECT_EQ(recv_fds(sockets.b.get(), payload, 2).status().code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(PassFds, what_this_process_may_not_open_is_its_own_shortage) {
  Sockets sockets(SOCK_STREAM);
  const int fds[] = {sockets.a.get(), sockets.a.get()};
  ASSERT_TRUE(send_fds(sockets.a.get(), kPayload, fds).ok());
  std::vector<std::byte> payload(16);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 3;  // Every descriptor in use is above: none can be added.
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const Status status = recv_fds(sockets.b.get(), payload, 2).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), ErrorCode::kSystem);
  EXPECT_NE(status.message().find("Too many open files"), std::string::npos) << status.message();
}

TEST(PassFds, a_packet_longer_than_expected_is_an_error) {
  Sockets sockets(SOCK_SEQPACKET);
  ASSERT_TRUE(send_fds(sockets.a.get(), kPayload, {}).ok());
  std::vector<std::byte> payload(15);
  EXPECT_EQ(recv_fds(sockets.b.get(), payload, 0).status().code(), ErrorCode::kPeerFailed);
}

TEST(PassFds, sizes_out_of_range_are_refused) {
  Sockets sockets(SOCK_STREAM);
  std::vector<std::byte> big(kMaxFdPayload + 1);
  const std::vector<int> many(kMaxPassedFds + 1, sockets.a.get());
  const auto code = [](const auto& result) { return result.status().code(); };
  EXPECT_EQ(code(send_fds(sockets.a.get(), {}, {})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(send_fds(sockets.a.get(), big, {})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(send_fds(sockets.a.get(), kPayload, many)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(recv_fds(sockets.b.get(), {}, 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(recv_fds(sockets.b.get(), big, 0)), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lightcc::shm_segment_test
