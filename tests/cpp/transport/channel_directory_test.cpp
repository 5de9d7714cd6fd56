// Connections find their channel whichever comes first, and what is stale or too much is closed.
#include "lightcc/transport/channel/channel_directory.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::channel_directory_test {
namespace {

/// What differs between the hellos of this test.
struct Hello {
  ChannelId channel;
  std::uint64_t attempt = 0;
  std::uint16_t index = 0;
};

/// Counts itself while it is open.
using Connection = std::shared_ptr<int>;

/// Takes the connections 0 and 1 of one sender.
class Channel {
 public:
  explicit Channel(int tag) : tag_(tag) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { on_destroyed_(); }

  void set_on_destroyed(std::function<void()> on_destroyed) {
    on_destroyed_ = std::move(on_destroyed);
  }
  std::uint64_t attempt() const { return attempt_; }
  bool lacks(const ChannelHello& hello) const {
    return attempt_ == 0 || (hello.attempt == attempt_ && connections_.at(hello.index) == nullptr);
  }
  void attach(Connection connection, const ChannelHello& hello) {
    attempt_ = hello.attempt;
    connections_.at(hello.index) = std::move(connection);
    ++attached_;
  }
  int tag() const { return tag_; }
  int attached() const { return attached_; }

 private:
  int tag_;
  std::uint64_t attempt_ = 0;
  std::vector<Connection> connections_{2};
  int attached_ = 0;
  std::function<void()> on_destroyed_;
};

constexpr ChannelId kId{0, 1, 0, 0};
constexpr ChannelId kOtherId{0, 1, 0, 1};
constexpr TimePoint kStart{std::chrono::hours(1)};

class ChannelDirectoryTest : public ::testing::Test {
 protected:
  void admit(const Hello& hello, TimePoint now = kStart) {
    directory_.admit(open_,
                     {.world_id = 1,
                      .attempt = hello.attempt,
                      .channel = hello.channel,
                      .index = hello.index,
                      .count = 2},
                     now);
  }
  /// Connections that are parked or with a channel.
  long open() const { return open_.use_count() - 1; }
  std::unique_ptr<Channel> accept(const ChannelId& id) {
    auto channel = directory_.accept(id, 7);
    EXPECT_TRUE(channel.ok()) << channel.status().message();
    return std::move(channel).value();
  }

  ChannelDirectory<Channel, Connection> directory_{3};
  Connection open_ = std::make_shared<int>();
};

TEST_F(ChannelDirectoryTest, connections_reach_their_channel_before_and_after_it_is_accepted) {
  admit({kId, 1, 0});
  admit({kOtherId, 2, 0});
  const auto channel = accept(kId);
  EXPECT_EQ(channel->tag(), 7);
  EXPECT_EQ(channel->attached(), 1);
  admit({kId, 1, 1});
  EXPECT_EQ(channel->attached(), 2);
  EXPECT_EQ(open(), 3);
}

TEST_F(ChannelDirectoryTest, a_channel_is_accepted_once_until_it_is_destroyed) {
  auto channel = accept(kId);
  const Status again = directory_.accept(kId, 7).status();
  EXPECT_EQ(again.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(again.message(), "the channel 0 -> 1 (process set 0, lane 0) was accepted already");
  EXPECT_TRUE(directory_.accept(kOtherId, 7).ok());
  channel.reset();
  EXPECT_NE(accept(kId), nullptr);
}

TEST_F(ChannelDirectoryTest, duplicates_and_older_senders_are_closed) {
  admit({kId, 2, 0});
  admit({kId, 2, 0});
  admit({kId, 1, 1});
  EXPECT_EQ(open(), 1);
  const auto channel = accept(kId);
  admit({kId, 2, 0});
  admit({kId, 1, 1});
  EXPECT_EQ(channel->attached(), 1);
  EXPECT_EQ(open(), 1);
}

TEST_F(ChannelDirectoryTest, a_newer_sender_replaces_what_is_parked_and_waits_for_the_next_accept) {
  admit({kId, 1, 0});
  admit({kId, 1, 1});
  admit({kId, 2, 0});
  EXPECT_EQ(open(), 1);
  auto channel = accept(kId);
  EXPECT_EQ(channel->attempt(), 2U);
  admit({kId, 3, 0});
  EXPECT_EQ(channel->attached(), 1);
  EXPECT_EQ(open(), 2);
  channel.reset();
  EXPECT_EQ(accept(kId)->attempt(), 3U);
}

TEST_F(ChannelDirectoryTest, no_more_are_parked_than_may_be) {
  for (std::uint32_t lane = 0; lane < 5; ++lane) {
    admit({{0, 1, 0, lane}, 1, 0});
  }
  EXPECT_EQ(open(), 3);
  EXPECT_EQ(accept({0, 1, 0, 2})->attached(), 1);
  EXPECT_EQ(accept({0, 1, 0, 3})->attached(), 0);
}

TEST_F(ChannelDirectoryTest, the_oldest_are_dropped_when_their_time_has_come) {
  EXPECT_FALSE(directory_.oldest_parked().has_value());
  admit({kId, 1, 0}, kStart);
  admit({kOtherId, 1, 0}, kStart + std::chrono::seconds(2));
  EXPECT_EQ(directory_.oldest_parked(), kStart);
  directory_.drop_parked([](TimePoint since) { return since <= kStart + std::chrono::seconds(1); });
  EXPECT_EQ(open(), 1);
  EXPECT_EQ(directory_.oldest_parked(), kStart + std::chrono::seconds(2));
  directory_.drop_parked([](TimePoint) { return true; });
  EXPECT_EQ(open(), 0);
}

TEST_F(ChannelDirectoryTest, channels_are_asked_and_may_outlive_the_directory) {
  auto directory = std::make_unique<ChannelDirectory<Channel, Connection>>(1);
  const auto is_seven = [](const Channel& channel) { return channel.tag() == 7; };
  EXPECT_FALSE(directory->any_channel(is_seven));
  const auto six = directory->accept(kOtherId, 6);
  EXPECT_FALSE(directory->any_channel(is_seven));
  auto seven = directory->accept(kId, 7);
  EXPECT_TRUE(directory->any_channel(is_seven));
  seven = Status(ErrorCode::kShutDown, "destroyed");
  EXPECT_FALSE(directory->any_channel(is_seven));
  directory.reset();
  EXPECT_EQ((*six)->tag(), 6);
}

}  // namespace
}  // namespace lightcc::channel_directory_test
