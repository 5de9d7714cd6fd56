// The TCP store's server among strangers, broken clients and clients that lose it.
#include "lightcc/rendezvous/tcp_store.hpp"

#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/wire/store_messages.hpp"

#include "doubles/shorthand.hpp"
#include "doubles/threads.hpp"

namespace lightcc::tcp_store_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kSecret = "a secret for this test";

std::unique_ptr<TcpStoreServer> start(const std::string& address = "127.0.0.1:0",
                                      std::size_t capacity_bytes = std::size_t{1} << 30) {
  auto server =
      TcpStoreServer::start(SocketAddress::resolve(address).value(), kSecret, capacity_bytes);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return server.ok() ? std::move(server).value() : nullptr;
}

std::unique_ptr<TcpStoreClient> client_of(const TcpStoreServer& server) {
  return make_tcp_store(server.address().to_string(), kSecret);
}

UniqueFd connect_plainly(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), address.data(), address.length()), 0);
  return fd;
}

/// A client that knows the secret and then does what the test wants.
UniqueFd connect_raw(const SocketAddress& address, std::string_view hello = kStoreHello) {
  auto fd = connect_authenticated(address, kSecret, bytes_of(hello), soon(), false);
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  return fd.ok() ? std::move(fd).value() : UniqueFd();
}

void send_bytes(int fd, const Bytes& bytes) {
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

bool is_hung_up(int fd) {
  std::array<std::byte, 64> buffer{};
  return readable(fd, seconds(10)) && ::recv(fd, buffer.data(), buffer.size(), 0) <= 0;
}

void expect_serves(const TcpStoreServer& server) {
  const auto client = client_of(server);
  ASSERT_TRUE(client->set("probe", bytes_of("works"), soon()).ok());
  EXPECT_EQ(client->get("probe", soon()).value(), bytes_of("works"));
}

TEST(TcpStoreTest, sixteen_clients_at_once_meet) {
  const auto server = start();
  run_on_threads(16, [&server](int rank) {
    const auto client = client_of(*server);
    const std::string own = std::to_string(rank);
    EXPECT_TRUE(client->set("rank/" + own, bytes_of(own), soon()).ok());
    for (int peer = 0; peer < 16; ++peer) {
      const auto value = client->get("rank/" + std::to_string(peer), soon());
      ASSERT_TRUE(value.ok()) << value.status().message();
      EXPECT_EQ(value.value(), bytes_of(std::to_string(peer)));
    }
  });
}

TEST(TcpStoreTest, closing_a_client_ends_what_it_waits_for) {
  const auto server = start();
  const auto client = client_of(*server);
  const auto view = client->watch("p/", 0, soon());
  ASSERT_TRUE(view.ok()) << view.status().message();
  Status got;
  Status watched;
  std::thread getter([&] { got = client->get("never", soon()).status(); });
  std::thread watcher([&] { watched = client->watch("p/", view->state, soon()).status(); });
  EXPECT_FALSE(client->get("never", in(milliseconds(50))).ok());  // So that they most likely wait.
  client->close();
  getter.join();
  watcher.join();
  EXPECT_EQ(got.code(), ErrorCode::kShutDown) << got.message();
  EXPECT_EQ(watched.code(), ErrorCode::kShutDown) << watched.message();
  EXPECT_EQ(client->set("k", {}, soon()).code(), ErrorCode::kShutDown);
  expect_serves(*server);
}

TEST(TcpStoreTest, a_watcher_that_goes_away_is_forgotten) {
  const auto server = start();
  for (int i = 0; i < 3; ++i) {
    const auto watcher = client_of(*server);
    const auto view = watcher->watch("p/", 0, soon());
    ASSERT_TRUE(view.ok()) << view.status().message();
    EXPECT_FALSE(watcher->watch("p/", view->state, in(milliseconds(10))).ok());
  }
  ASSERT_TRUE(client_of(*server)->set("p/1", {}, soon()).ok());
  expect_serves(*server);
}

TEST(TcpStoreTest, one_set_wakes_all_who_wait) {
  const auto server = start();
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&server] {
      const auto client = client_of(*server);
      EXPECT_TRUE(client->get("go", soon()).ok());
    });
  }
  const auto client = client_of(*server);
  EXPECT_FALSE(client->get("never", in(milliseconds(50))).ok());  // Most wait by now.
  EXPECT_TRUE(client->set("go", Bytes(100'000), soon()).ok());
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(TcpStoreTest, strangers_do_not_disturb_it) {
  const auto server = start();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(connect_plainly(server->address()));
    if (i % 3 == 1) {
      send_bytes(strangers.back().get(), bytes_of("GET / HTTP/1.1\r\n\r\n"));
    } else if (i % 3 == 2) {
      strangers.pop_back();  // A port scan.
    }
  }
  expect_serves(*server);
}

TEST(TcpStoreTest, wrong_secret_is_told_at_once) {
  const auto server = start();
  const auto client = make_tcp_store(server->address().to_string(), "another secret");
  const Status status = client->set("k", {}, soon());
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(status.message().find("secret"), std::string::npos);
  expect_serves(*server);
}

TEST(TcpStoreTest, other_purposes_are_turned_away) {
  const auto server = start();
  const UniqueFd other = connect_raw(server->address(), "control link");
  EXPECT_TRUE(is_hung_up(other.get()));
  expect_serves(*server);
}

TEST(TcpStoreTest, malformed_frames_end_only_their_connection) {
  const auto server = start();
  Bytes oversized;
  ByteWriter(oversized).number(std::uint32_t{0xffffffff});
  Bytes empty;
  ByteWriter(empty).number(std::uint32_t{0});
  Bytes unknown;
  ByteWriter(unknown).number(std::uint32_t{1});
  ByteWriter(unknown).number(std::uint8_t{99});
  for (const Bytes& frame : {oversized, empty, unknown}) {
    const UniqueFd raw = connect_raw(server->address());
    send_bytes(raw.get(), frame);
    EXPECT_TRUE(is_hung_up(raw.get()));
  }
  expect_serves(*server);
}

TEST(TcpStoreTest, half_a_request_holds_up_nobody) {
  const auto server = start();
  Bytes frame;
  encode_store_request({StoreRequest::Kind::kSet, "half", bytes_of("value")}, frame);
  const UniqueFd raw = connect_raw(server->address());
  const Bytes half(frame.begin(), frame.begin() + 7);
  send_bytes(raw.get(), half);
  expect_serves(*server);
  const Bytes rest(frame.begin() + 7, frame.end());
  send_bytes(raw.get(), rest);
  EXPECT_EQ(client_of(*server)->get("half", soon()).value(), bytes_of("value"));
}

TEST(TcpStoreTest, a_client_that_leaves_while_it_waits_is_forgotten) {
  const auto server = start();
  Bytes frame;
  encode_store_request({StoreRequest::Kind::kGet, "gone", {}}, frame);
  for (int i = 0; i < 20; ++i) {
    const UniqueFd raw = connect_raw(server->address());
    send_bytes(raw.get(), frame);
  }
  const auto client = client_of(*server);
  ASSERT_TRUE(client->set("gone", bytes_of("x"), soon()).ok());
  expect_serves(*server);
}

TEST(TcpStoreTest, a_client_that_does_not_read_its_answer_holds_up_nobody) {
  const auto server = start();
  const auto client = client_of(*server);
  ASSERT_TRUE(client->set("big", Bytes(std::size_t{16} << 20), soon()).ok());
  Bytes frame;
  encode_store_request({StoreRequest::Kind::kGet, "big", {}}, frame);
  const UniqueFd raw = connect_raw(server->address());
  send_bytes(raw.get(), frame);
  EXPECT_TRUE(readable(raw.get(), seconds(10)));
  expect_serves(*server);
}

TEST(TcpStoreTest, a_full_store_says_so) {
  const auto server = start("127.0.0.1:0", 10'000);
  const auto client = client_of(*server);
  ASSERT_TRUE(client->set("a", Bytes(8000), soon()).ok());
  const Status status = client->set("b", Bytes(8000), soon());
  EXPECT_EQ(status.code(), ErrorCode::kSystem);
  EXPECT_NE(status.message().find("the store is full"), std::string::npos) << status.message();
  ASSERT_TRUE(client->remove_prefix("a", soon()).ok());
  EXPECT_TRUE(client->set("b", Bytes(8000), soon()).ok());
}

TEST(TcpStoreTest, a_client_may_come_before_its_server) {
  const std::string address = start()->address().to_string();  // Free again.
  Status status(ErrorCode::kInternal, "not run");
  std::thread early([&] { status = make_tcp_store(address, kSecret)->set("k", {}, soon()); });
  const auto server = start(address);
  early.join();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(TcpStoreTest, a_client_finds_a_server_that_came_back) {
  auto server = start();
  const std::string address = server->address().to_string();
  const auto client = make_tcp_store(address, kSecret);
  ASSERT_TRUE(client->set("k", bytes_of("old"), soon()).ok());
  server.reset();
  server = start(address);
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(client->set("k", bytes_of("new"), soon()).ok());
  EXPECT_EQ(client->get("k", soon()).value(), bytes_of("new"));
}

TEST(TcpStoreTest, a_get_survives_a_restart_of_the_server) {
  auto server = start();
  const std::string address = server->address().to_string();
  Result<Bytes> value = Status(ErrorCode::kInternal, "not run");
  std::thread getter([&] { value = make_tcp_store(address, kSecret)->get("k", soon()); });
  EXPECT_FALSE(client_of(*server)->get("never", in(milliseconds(50))).ok());
  server.reset();
  server = start(address);
  EXPECT_TRUE(client_of(*server)->set("k", bytes_of("x"), soon()).ok());
  getter.join();
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(value.value(), bytes_of("x"));
}

TEST(TcpStoreTest, without_a_server_the_deadline_tells_the_cause_and_the_key) {
  const std::string address = start()->address().to_string();
  const auto value = make_tcp_store(address, kSecret)->get("some/key", in(milliseconds(100)));
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().code(), ErrorCode::kTimeout);
  EXPECT_NE(value.status().message().find("'some/key'"), std::string::npos);
  EXPECT_NE(value.status().message().find("refused"), std::string::npos);
  EXPECT_NE(value.status().message().find(address), std::string::npos);
}

TEST(TcpStoreTest, the_thread_has_a_name_and_ends_with_the_server) {
  const auto count_threads = [] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "comm");
      std::string name;
      std::getline(file, name);
      count += name == "lightcc-store" ? 1 : 0;
    }
    return count;
  };
  auto server = start();
  expect_serves(*server);
  EXPECT_EQ(count_threads(), 1);
  server.reset();
  // The kernel may list a thread for a moment after it was joined.
  const TimePoint give_up = soon();
  while (count_threads() > 0 && Clock::system().now() < give_up) {
    std::this_thread::yield();
  }
  EXPECT_EQ(count_threads(), 0);
}

TEST(TcpStoreTest, it_ends_while_clients_wait) {
  auto server = start();
  const UniqueFd raw = connect_raw(server->address());
  Bytes frame;
  encode_store_request({StoreRequest::Kind::kGet, "never", {}}, frame);
  send_bytes(raw.get(), frame);
  server.reset();
  EXPECT_TRUE(is_hung_up(raw.get()));
}

}  // namespace
}  // namespace lightcc::tcp_store_test
