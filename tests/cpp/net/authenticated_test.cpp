// Real sockets: both ends of the handshake, and the strangers that must not disturb it.
#include "lightcc/net/authenticated.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/wire/handshake.hpp"

#include "doubles/shorthand.hpp"

namespace lightcc::authenticated_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kSecret = "a secret for this test";

SocketAddress any_port() {
  return SocketAddress::resolve("127.0.0.1:0").value();
}

std::unique_ptr<AuthListener> listen(const SocketAddress& address = any_port(),
                                     const AuthListenerOptions& options = {},
                                     const Clock& clock = Clock::system()) {
  auto listener = AuthListener::listen(address, kSecret, options, clock);
  EXPECT_TRUE(listener.ok()) << listener.status().message();
  return listener.ok() ? std::move(listener).value() : nullptr;
}

/// Polls the listener, sleeping on its wait_fd(), until it has a connection or `until` says stop.
std::optional<AuthenticatedSocket> serve(
    AuthListener& listener, const std::function<bool()>& until = [] { return false; }) {
  const TimePoint give_up = in(seconds(10));
  while (Clock::system().now() < give_up && !until()) {
    auto connection = listener.poll();
    EXPECT_TRUE(connection.ok()) << connection.status().message();
    if (!connection.ok() || connection->has_value()) {
      return connection.ok() ? std::move(connection).value() : std::nullopt;
    }
    (void)readable(listener.wait_fd(), milliseconds(20));
  }
  return std::nullopt;
}

/// connect_authenticated() on a thread of its own, so that the test can serve it.
class Client {
 public:
  explicit Client(const SocketAddress& address,
                  const std::string& secret = kSecret,
                  bool retry = false,
                  Duration timeout = seconds(10))
      : thread_([this, address, secret, retry, timeout] {
          result_ = connect_authenticated(address, secret, bytes_of("hi"), in(timeout), retry);
        }) {}
  ~Client() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  Result<UniqueFd> result() {
    thread_.join();
    return std::move(result_);
  }

 private:
  Result<UniqueFd> result_ = Status(ErrorCode::kInternal, "not started");
  std::thread thread_;
};

/// A stranger: a plain connection.
UniqueFd connect_plainly(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), address.data(), address.length()), 0);
  return fd;
}

void send_text(int fd, std::string_view text) {
  ASSERT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

std::string receive_text(int fd) {
  std::array<char, 64> buffer{};
  EXPECT_TRUE(readable(fd, seconds(10)));
  const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), 0);
  return {buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
}

/// Whether the other end hangs up within ten seconds (what it says before that does not matter).
bool is_hung_up(int fd) {
  std::array<char, 256> buffer{};
  while (readable(fd, seconds(10))) {
    if (::recv(fd, buffer.data(), buffer.size(), 0) <= 0) {
      return true;
    }
  }
  return false;
}

int flag(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof(value);
  EXPECT_EQ(::getsockopt(fd, level, option, &value, &length), 0);
  return value;
}

class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

TEST(AuthenticatedTest, both_ends_get_a_socket_that_carries_bytes) {
  for (const std::string host : {"127.0.0.1:0", "[::1]:0"}) {
    const auto listener = listen(SocketAddress::resolve(host).value());
    ASSERT_NE(listener, nullptr);
    EXPECT_NE(listener->address().port(), 0);
    Client client(listener->address());
    auto served = serve(*listener);
    auto connected = client.result();
    ASSERT_TRUE(served.has_value());
    ASSERT_TRUE(connected.ok()) << connected.status().message();
    EXPECT_EQ(served->hello, bytes_of("hi"));
    EXPECT_EQ(served->peer_pid, 0);
    for (const int fd : {served->fd.get(), connected->get()}) {
      EXPECT_NE(flag(fd, IPPROTO_TCP, TCP_NODELAY), 0);
      EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
      EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    }
    send_text(connected->get(), "to the server");
    EXPECT_EQ(receive_text(served->fd.get()), "to the server");
    send_text(served->fd.get(), "to the client");
    EXPECT_EQ(receive_text(connected->get()), "to the client");
    EXPECT_EQ(listener->rejected(), 0U);
  }
}

TEST(AuthenticatedTest, unix_sockets_tell_the_peers_pid) {
  const std::string name = "lightcc-test-" + std::to_string(::getpid());
  const auto listener = listen(SocketAddress::abstract_unix(name));
  ASSERT_NE(listener, nullptr);
  EXPECT_EQ(listener->address().to_string(), "@" + name);
  Client client(listener->address());
  const auto served = serve(*listener);
  ASSERT_TRUE(served.has_value());
  EXPECT_TRUE(client.result().ok());
  EXPECT_EQ(served->peer_pid, ::getpid());
}

TEST(AuthenticatedTest, payload_sent_at_once_stays_in_the_socket) {
  const auto listener = listen();
  const UniqueFd raw = connect_plainly(listener->address());
  ASSERT_FALSE(serve(*listener, [&] { return readable(raw.get(), milliseconds(0)); }).has_value());
  ClientHandshake handshake(kSecret, Nonce{}, bytes_of("hi"));
  const std::string greeting = receive_text(raw.get());
  Bytes answer;
  ASSERT_TRUE(handshake.feed(as_bytes(greeting), answer).ok());
  const Bytes payload = bytes_of("early payload");
  answer.insert(answer.end(), payload.begin(), payload.end());
  ASSERT_EQ(::send(raw.get(), answer.data(), answer.size(), 0),
            static_cast<ssize_t>(answer.size()));
  const auto served = serve(*listener);
  ASSERT_TRUE(served.has_value());
  EXPECT_EQ(receive_text(served->fd.get()), "early payload");
}

TEST(AuthenticatedTest, an_answer_may_drip_in_byte_by_byte) {
  const auto listener = listen();
  const UniqueFd raw = connect_plainly(listener->address());
  ASSERT_FALSE(serve(*listener, [&] { return readable(raw.get(), milliseconds(0)); }).has_value());
  ClientHandshake handshake(kSecret, Nonce{}, bytes_of("hi"));
  Bytes answer;
  ASSERT_TRUE(handshake.feed(as_bytes(receive_text(raw.get())), answer).ok());
  std::optional<AuthenticatedSocket> served;
  for (const std::byte byte : answer) {
    ASSERT_FALSE(served.has_value());
    ASSERT_EQ(::send(raw.get(), &byte, 1, 0), 1);
    ASSERT_TRUE(readable(listener->wait_fd(), seconds(10)));
    auto polled = listener->poll();
    ASSERT_TRUE(polled.ok());
    served = std::move(polled).value();
  }
  EXPECT_TRUE(served.has_value());
}

TEST(AuthenticatedTest, wrong_secret_fails_at_both_ends_at_once) {
  const auto listener = listen();
  Client client(listener->address(), "another secret", /*retry=*/true);
  EXPECT_FALSE(serve(*listener, [&] { return listener->rejected() > 0; }).has_value());
  EXPECT_EQ(listener->rejected(), 1U);
  const auto connected = client.result();
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(connected.status().message().find("refused this end's job secret"), std::string::npos);
  EXPECT_NE(connected.status().message().find(listener->address().to_string()), std::string::npos);
}

TEST(AuthenticatedTest, an_empty_secret_is_refused) {
  EXPECT_EQ(AuthListener::listen(any_port(), "", {}).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(AuthConnector::start(any_port(), "", {}, in(seconds(1))).status().code(),
            ErrorCode::kInvalidArgument);
}

TEST(AuthenticatedTest, an_oversized_hello_is_the_callers_fault) {
  const auto connector =
      AuthConnector::start(any_port(), kSecret, Bytes(kMaxHelloBytes + 1), in(seconds(1)));
  EXPECT_EQ(connector.status().code(), ErrorCode::kInvalidArgument);
}

TEST(AuthListenerTest, strangers_are_dropped_and_counted) {
  const auto listener = listen();
  const UniqueFd garbage = connect_plainly(listener->address());
  send_text(garbage.get(), "GET / HTTP/1.1\r\n\r\n");
  connect_plainly(listener->address()).reset();  // A port scan.
  const UniqueFd half = connect_plainly(listener->address());
  send_text(half.get(), "light");
  ASSERT_EQ(::shutdown(half.get(), SHUT_WR), 0);
  EXPECT_FALSE(serve(*listener, [&] { return listener->rejected() == 3; }).has_value());
  EXPECT_EQ(listener->rejected(), 3U);
  EXPECT_TRUE(is_hung_up(garbage.get()));
  EXPECT_TRUE(is_hung_up(half.get()));
}

TEST(AuthListenerTest, silence_ends_at_the_deadline) {
  ManualClock clock;
  const auto listener = listen(any_port(), {}, clock);
  const UniqueFd silent = connect_plainly(listener->address());
  ASSERT_FALSE(
      serve(*listener, [&] { return readable(silent.get(), milliseconds(0)); }).has_value());
  clock.advance(milliseconds(4999));
  ASSERT_TRUE(listener->poll().ok());
  EXPECT_EQ(listener->rejected(), 0U);
  clock.advance(milliseconds(1));
  ASSERT_TRUE(listener->poll().ok());
  EXPECT_EQ(listener->rejected(), 1U);
  EXPECT_TRUE(is_hung_up(silent.get()));
}

TEST(AuthListenerTest, wait_fd_wakes_for_deadlines_and_sleeps_otherwise) {
  AuthListenerOptions options;
  options.handshake_timeout = milliseconds(50);
  const auto listener = listen(any_port(), options);
  const UniqueFd silent = connect_plainly(listener->address());
  ASSERT_TRUE(readable(listener->wait_fd(), seconds(10)));  // The newcomer.
  ASSERT_TRUE(listener->poll().ok());
  while (listener->rejected() == 0) {
    ASSERT_TRUE(readable(listener->wait_fd(), seconds(10)));  // The deadline.
    ASSERT_TRUE(listener->poll().ok());
  }
  ASSERT_TRUE(listener->poll().ok());  // Takes note that the timer has fired.
  EXPECT_FALSE(readable(listener->wait_fd(), milliseconds(100)));
}

TEST(AuthListenerTest, idle_strangers_do_not_keep_a_client_out) {
  AuthListenerOptions options;
  options.max_pending = 64;
  const auto listener = listen(any_port(), options);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 108; ++i) {
    strangers.push_back(connect_plainly(listener->address()));
    ASSERT_TRUE(listener->poll().ok());
  }
  Client client(listener->address());
  const auto served = serve(*listener);
  ASSERT_TRUE(served.has_value());
  EXPECT_EQ(served->hello, bytes_of("hi"));
  EXPECT_TRUE(client.result().ok());
  // 64 places: the 45 oldest strangers had to leave, the others may still say something.
  EXPECT_EQ(listener->rejected(), 45U);
  EXPECT_TRUE(is_hung_up(strangers.front().get()));
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

/// The limit of descriptors, until the end of a test.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(std::size_t limit) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit tight = before_;
    tight.rlim_cur = limit;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST(AuthListenerTest, strangers_take_a_small_share_of_the_descriptors) {
  AuthListenerOptions options;
  options.max_pending = 4096;
  const auto listener = listen(any_port(), options);
  const DescriptorLimit limit(256);
  const std::size_t before = open_descriptors();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(connect_plainly(listener->address()));
    ASSERT_TRUE(listener->poll().ok());
    ASSERT_LE(open_descriptors(), before + strangers.size() + 256 / 8);
  }
}

TEST(AuthListenerTest, with_few_descriptors_left_strangers_get_hardly_any_and_clients_come_in) {
  const auto listener = listen();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 30; ++i) {
    strangers.push_back(connect_plainly(listener->address()));
  }
  std::vector<UniqueFd> others;
  const DescriptorLimit limit(128);
  while (others.empty() || others.back().get() < 99) {
    others.emplace_back(::fcntl(0, F_DUPFD_CLOEXEC, 0));
    ASSERT_TRUE(others.back().valid());
  }
  Client client(listener->address());
  std::size_t maximum = 0;
  const auto served = serve(*listener, [&] {
    maximum = std::max(maximum, open_descriptors());
    return false;
  });
  ASSERT_TRUE(served.has_value());
  EXPECT_TRUE(client.result().ok());
  // Two strangers, the client's own end, what the connector needs, and what counts them.
  EXPECT_LE(maximum, open_descriptors() + 8);
  EXPECT_GE(listener->rejected(), 25U);
}

TEST(AuthListenerTest, who_has_said_something_outlives_the_silent) {
  AuthListenerOptions options;
  options.max_pending = 4;
  ManualClock clock;
  const auto listener = listen(any_port(), options, clock);
  const UniqueFd speaker = connect_plainly(listener->address());
  ASSERT_TRUE(listener->poll().ok());
  send_text(speaker.get(), "lightcc");
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 10; ++i) {
    clock.advance(milliseconds(300));
    silent.push_back(connect_plainly(listener->address()));
    ASSERT_TRUE(listener->poll().ok());
  }
  EXPECT_EQ(listener->rejected(), 7U);
  EXPECT_TRUE(is_hung_up(silent[0].get()));
  std::array<char, 64> greeting{};
  EXPECT_GT(::recv(speaker.get(), greeting.data(), greeting.size(), MSG_DONTWAIT), 0);
  EXPECT_LT(::recv(speaker.get(), greeting.data(), greeting.size(), MSG_DONTWAIT), 0);
}

TEST(AuthListenerTest, a_burst_of_clients_beyond_the_limit_is_served_in_full) {
  AuthListenerOptions options;
  options.max_pending = 2;
  const auto listener = listen(any_port(), options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(listener->address(), kSecret, /*retry=*/true));
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(serve(*listener).has_value());
  }
  for (const auto& client : clients) {
    EXPECT_TRUE(client->result().ok());
  }
}

TEST(AuthListenerTest, running_out_of_descriptors_neither_fails_nor_spins) {
  const auto listener = listen();
  UniqueFd stranger = connect_plainly(listener->address());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 3;  // Every descriptor in use is above: none can be added.
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto polled = listener->poll();
  const bool still_readable = readable(listener->wait_fd(), milliseconds(0));
  EXPECT_TRUE(listener->shortage().ok());
  EXPECT_FALSE(serve(*listener, [&] { return !listener->shortage().ok(); }).has_value());
  const Status shortage = listener->shortage();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(shortage.code(), ErrorCode::kSystem);
  EXPECT_NE(shortage.message().find("Too many open files"), std::string::npos);
  ASSERT_TRUE(polled.ok()) << polled.status().message();
  EXPECT_FALSE(still_readable);
  // When there are descriptors again, the one that waited is greeted without being asked to.
  EXPECT_FALSE(
      serve(*listener, [&] { return readable(stranger.get(), milliseconds(0)); }).has_value());
  EXPECT_EQ(receive_text(stranger.get()).substr(0, 7), "lightcc");
  EXPECT_TRUE(listener->shortage().ok());
}

TEST(AuthListenerTest, a_taken_port_is_a_clear_error) {
  const auto listener = listen();
  const auto second = AuthListener::listen(listener->address(), kSecret, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kSystem);
  EXPECT_NE(second.status().message().find(listener->address().to_string()), std::string::npos);
}

TEST(AuthConnectorTest, refusal_is_reported_by_poll) {
  const SocketAddress nobody = listen()->address();  // The listener is gone at once.
  const auto connector = AuthConnector::start(nobody, kSecret, {}, in(seconds(10)));
  ASSERT_TRUE(connector.ok()) << connector.status().message();
  ASSERT_TRUE(readable(connector.value()->wait_fd(), seconds(10)));
  const auto polled = connector.value()->poll();
  ASSERT_FALSE(polled.ok());
  EXPECT_EQ(polled.status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(polled.status().message().find("refused"), std::string::npos);
  EXPECT_EQ(connector.value()->poll().status().code(), ErrorCode::kInternal);
}

TEST(AuthConnectorTest, an_absent_unix_server_is_a_refusal) {
  const auto address = SocketAddress::abstract_unix("lightcc-nobody-" + std::to_string(::getpid()));
  const auto connected = connect_authenticated(address, kSecret, {}, in(seconds(10)), false);
  EXPECT_EQ(connected.status().code(), ErrorCode::kPeerFailed);
}

TEST(AuthConnectorTest, a_mute_server_is_a_timeout) {
  const UniqueFd mute(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = any_port();
  ASSERT_EQ(::bind(mute.get(), any.data(), any.length()), 0);
  ASSERT_EQ(::listen(mute.get(), 8), 0);
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  ASSERT_EQ(::getsockname(mute.get(), reinterpret_cast<sockaddr*>(&storage), &length), 0);
  const auto address = SocketAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length);
  const auto connected =
      connect_authenticated(address, kSecret, {}, in(milliseconds(100)), /*retry_refused=*/true);
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.status().code(), ErrorCode::kTimeout);
  EXPECT_NE(connected.status().message().find("says nothing"), std::string::npos);
}

TEST(AuthConnectorTest, a_server_that_speaks_something_else_is_not_retried) {
  const UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = any_port();
  ASSERT_EQ(::bind(server.get(), any.data(), any.length()), 0);
  ASSERT_EQ(::listen(server.get(), 8), 0);
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  ASSERT_EQ(::getsockname(server.get(), reinterpret_cast<sockaddr*>(&storage), &length), 0);
  Client client(SocketAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length),
                kSecret,
                /*retry=*/true);
  const UniqueFd accepted(::accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
  send_text(accepted.get(), "SSH-2.0-OpenSSH_9.2\r\n");
  const auto connected = client.result();
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(connected.status().message().find("does not speak"), std::string::npos);
}

TEST(AuthConnectorTest, retrying_finds_a_server_that_comes_late) {
  const SocketAddress address = listen()->address();  // Free again.
  Client client(address, kSecret, /*retry=*/true);
  (void)readable(-1, milliseconds(50));  // Lets it be refused a few times; not needed to pass.
  const auto listener = listen(address);
  ASSERT_NE(listener, nullptr);
  EXPECT_TRUE(serve(*listener).has_value());
  EXPECT_TRUE(client.result().ok());
}

TEST(AuthConnectorTest, retrying_ends_at_the_deadline_and_tells_the_cause) {
  const SocketAddress nobody = listen()->address();
  const auto connected =
      connect_authenticated(nobody, kSecret, {}, in(milliseconds(100)), /*retry_refused=*/true);
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.status().code(), ErrorCode::kTimeout);
  EXPECT_NE(connected.status().message().find("refused"), std::string::npos);
}

}  // namespace
}  // namespace lightcc::authenticated_test
