// What every Store promises, for each implementation.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"
#include "lightcc/rendezvous/hash_store.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"

namespace lightcc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TimePoint in(Duration delay) {
  return Clock::system().now() + delay;
}
TimePoint soon() {
  return in(seconds(20));
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// A store and, where it needs one, its server.
struct Subject {
  std::unique_ptr<TcpStoreServer> server;
  std::shared_ptr<Store> store;
};

Subject make_hash() {
  return {nullptr, make_hash_store()};
}

Subject make_tcp() {
  auto server = TcpStoreServer::start(SocketAddress::resolve("127.0.0.1:0").value(), "secret");
  EXPECT_TRUE(server.ok()) << server.status().message();
  const std::string address = server.value()->address().to_string();
  return {std::move(server).value(), make_tcp_store(address, "secret")};
}

class StoreTest : public testing::TestWithParam<Subject (*)()> {
 protected:
  Subject subject_ = GetParam()();
  Store& store_ = *subject_.store;
};

TEST_P(StoreTest, get_returns_what_set_stored) {
  ASSERT_TRUE(store_.set("a", bytes_of("one"), soon()).ok());
  EXPECT_EQ(store_.get("a", soon()).value(), bytes_of("one"));
  ASSERT_TRUE(store_.set("a", bytes_of("two"), soon()).ok());
  EXPECT_EQ(store_.get("a", soon()).value(), bytes_of("two"));
  ASSERT_TRUE(store_.set("", {}, soon()).ok());
  EXPECT_EQ(store_.get("", soon()).value(), Bytes());
}

TEST_P(StoreTest, get_waits_for_set) {
  std::thread setter;
  Result<Bytes> value = Status(ErrorCode::kInternal, "not run");
  std::thread getter([&] { value = store_.get("late", soon()); });
  setter = std::thread([&] {
    // Its own key first, so that the getter most likely waits; correct either way.
    EXPECT_FALSE(store_.get("never", in(milliseconds(50))).ok());
    EXPECT_TRUE(store_.set("late", bytes_of("here"), soon()).ok());
  });
  getter.join();
  setter.join();
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(value.value(), bytes_of("here"));
}

TEST_P(StoreTest, a_timeout_names_the_key) {
  const auto value = store_.get("world/7/rank/3", in(milliseconds(30)));
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().code(), ErrorCode::kTimeout);
  EXPECT_NE(value.status().message().find("'world/7/rank/3' was not set"), std::string::npos)
      << value.status().message();
  // The store works on.
  ASSERT_TRUE(store_.set("world/7/rank/3", bytes_of("x"), soon()).ok());
  EXPECT_EQ(store_.get("world/7/rank/3", soon()).value(), bytes_of("x"));
}

TEST_P(StoreTest, remove_prefix_removes_the_prefix_only) {
  for (const char* key : {"a/1", "a/2", "b/1"}) {
    ASSERT_TRUE(store_.set(key, bytes_of(key), soon()).ok());
  }
  ASSERT_TRUE(store_.remove_prefix("a/", soon()).ok());
  EXPECT_EQ(store_.get("b/1", soon()).value(), bytes_of("b/1"));
  EXPECT_EQ(store_.get("a/1", in(milliseconds(20))).status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(store_.get("a/2", in(milliseconds(20))).status().code(), ErrorCode::kTimeout);
}

TEST_P(StoreTest, the_largest_key_and_value_pass) {
  const std::string key(256, 'k');
  Bytes value(std::size_t{16} << 20);
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  ASSERT_TRUE(store_.set(key, value, soon()).ok());
  const auto got = store_.get(key, soon());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_TRUE(got.value() == value);
}

TEST_P(StoreTest, beyond_the_limits_it_is_the_callers_fault) {
  EXPECT_EQ(store_.set(std::string(257, 'k'), {}, soon()).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_.set("k", Bytes((std::size_t{16} << 20) + 1), soon()).code(),
            ErrorCode::kInvalidArgument);
}

TEST_P(StoreTest, many_threads_meet_through_one_store) {
  constexpr int kThreads = 16;
  std::vector<int> sums(kThreads);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kThreads; ++rank) {
    threads.emplace_back([this, rank, &sum = sums[static_cast<std::size_t>(rank)]] {
      EXPECT_TRUE(
          store_.set("rank/" + std::to_string(rank), Bytes(static_cast<std::size_t>(rank)), soon())
              .ok());
      for (int peer = 0; peer < kThreads; ++peer) {
        const auto value = store_.get("rank/" + std::to_string(peer), soon());
        EXPECT_TRUE(value.ok()) << value.status().message();
        sum += value.ok() ? static_cast<int>(value.value().size()) : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(sums, std::vector<int>(kThreads, kThreads * (kThreads - 1) / 2));
}

INSTANTIATE_TEST_SUITE_P(, StoreTest, testing::Values(&make_hash, &make_tcp), [](const auto& row) {
  return row.index == 0 ? "hash" : "tcp";
});

}  // namespace
}  // namespace lightcc
