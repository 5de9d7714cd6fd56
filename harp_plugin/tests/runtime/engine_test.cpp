// Engines and their background drivers with real threads and real time, over memory and over UDP.
//
// Nothing here measures time. What must happen is waited for with a bound that no machine reaches;
// what must not happen is given a few peer timeouts in which it could.
#include "runtime/engine.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/memory.hpp"
#include "datapath/udp.hpp"
#include "endpoint/connection.hpp"
#include "runtime/background_driver.hpp"
#include "runtime/clock.hpp"
#include "runtime/live.hpp"
#include "runtime/stack.hpp"
#include "runtime/stat_publisher.hpp"
#include "sync/seq_words.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp::engine_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Medium : std::uint8_t { kMemory, kUdp };

struct Setting {
  Medium medium;
  RunMode mode;
};

constexpr std::array<Setting, 6> kSettings{{{Medium::kMemory, RunMode::kThread},
                                            {Medium::kMemory, RunMode::kAdaptive},
                                            {Medium::kMemory, RunMode::kInline},
                                            {Medium::kUdp, RunMode::kThread},
                                            {Medium::kUdp, RunMode::kAdaptive},
                                            {Medium::kUdp, RunMode::kInline}}};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  const std::array<const char*, 3> modes{"thread", "adaptive", "inline"};
  return out << (setting.medium == Medium::kMemory ? "memory_" : "udp_")
             << modes.at(static_cast<std::size_t>(setting.mode));
}

/// Engines, each with a background driver of its own, so that one can vanish without the others.
class Hosts {
 public:
  explicit Hosts(const Setting& setting,
                 Duration peer_timeout = seconds(60),
                 Duration spin = BackgroundDriverOptions{}.spin)
      : setting_(setting), spin_(spin) {
    config_.session.peer_timeout = peer_timeout;
    config_.session.connect_timeout = seconds(60);
    config_.session.min_rto = milliseconds(10);
  }

  Engine& add() {
    drivers_.push_back(std::make_unique<BackgroundDriver>(
        BackgroundDriverOptions{.mode = setting_.mode, .spin = spin_, .core = {}}));
    return drivers_.back()->add(std::make_unique<Stack>(datapath(), config_));
  }
  /// An engine with the same background driver as the one that was added last.
  Engine& add_beside() {
    return drivers_.back()->add(std::make_unique<Stack>(datapath(), config_));
  }
  void destroy(std::size_t host) { drivers_[host].reset(); }

 private:
  std::unique_ptr<Datapath> datapath() {
    if (setting_.medium == Medium::kMemory) {
      return std::make_unique<MemoryDatapath>(network_, count_++);
    }
    Address local;
    local.ip[0] = std::byte{127};
    local.ip[3] = std::byte{1};
    std::string error;
    auto udp = UdpDatapath::open({.local = local, .mtu_bytes = 9000}, &error);
    EXPECT_NE(udp, nullptr) << error;
    return udp;
  }

  Setting setting_;
  Duration spin_;
  StackConfig config_;
  MemoryNetwork network_{9000};
  std::size_t count_ = 0;
  std::vector<std::unique_ptr<BackgroundDriver>> drivers_;
};

class EngineTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(All, EngineTest, testing::ValuesIn(kSettings), [](const auto& one) {
  return testing::PrintToString(one.param);
});

TEST(Engine, what_is_sent_while_other_messages_are_under_way_leaves_together) {
  constexpr std::uint64_t kRounds = 50;
  constexpr std::uint64_t kAtOnce = 8;
  Hosts hosts({Medium::kUdp, RunMode::kInline});
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  LivePair pair = connect_live(left, right);
  const auto batches = [&] {
    return left.with_stack(
        [](const Stack& stack, Time) { return stack.datapath().stats().batches_sent; });
  };
  std::uint64_t fewest = kAtOnce;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t before = batches();
    std::vector<PacketBytes> in(kAtOnce, PacketBytes(100));
    std::vector<PacketBytes> out;
    std::vector<RequestId> receives;
    std::vector<RequestId> sends;
    for (std::uint64_t i = 0; i < kAtOnce; ++i) {
      out.push_back(pattern(100, round * kAtOnce + i));
      receives.push_back(pair.server->receive(in[i]).value());
      sends.push_back(pair.client->send(out[i], 0).value());
    }
    for (std::uint64_t i = 0; i < kAtOnce; ++i) {
      EXPECT_EQ(finished(*pair.client, sends[i], pair.server.get()).error, SessionError::kNone);
      EXPECT_EQ(finished(*pair.server, receives[i]).error, SessionError::kNone);
    }
    EXPECT_EQ(in, out);
    fewest = std::min(fewest, batches() - before);
  }
  // The first of a round leaves at once, the other seven with the first question; in all rounds
  // only where no other process takes the core meanwhile.
  EXPECT_LT(fewest, kAtOnce / 2);
}

TEST(Engine, what_was_received_is_acknowledged_with_the_next_call) {
  Hosts hosts({Medium::kMemory, RunMode::kInline});
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  LivePair pair = connect_live(left, right);
  const auto acks = [&] {
    return right.with_stack(
        [](const Stack& stack, Time) { return stack.session_stats().acks_sent; });
  };
  for (std::uint64_t i = 0; i < 100; ++i) {
    PacketBytes in(100);
    const PacketBytes out = pattern(100, i);
    const auto receive = pair.server->receive(in);
    (void)pair.server->poll();
    const std::uint64_t before =
        acks();  // A background driver may answer before we ask, if we are held up.
    const auto send = pair.client->send(out, 0);
    ASSERT_TRUE(send && receive);
    EXPECT_EQ(finished(*pair.server, *receive).error, SessionError::kNone);
    (void)pair.server->poll();
    EXPECT_GT(acks(), before);
    EXPECT_EQ(finished(*pair.client, *send).error, SessionError::kNone);
  }
}

TEST_P(EngineTest, engines_with_one_driver_serve_one_another) {
  Hosts hosts(GetParam());
  Engine& left = hosts.add();
  Engine& right = hosts.add_beside();
  LivePair pair = connect_live(left, right);
  LivePair to_itself = connect_live(left, left);
  transfer_live(*pair.client, *pair.server, 300'000, 1);
  transfer_live(*to_itself.server, *to_itself.client, 300'000, 2);
}

TEST_P(EngineTest, threads_with_sessions_of_their_own_drive_one_engine) {
  constexpr std::size_t kThreads = 4;
  Hosts hosts(GetParam());
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  std::vector<LivePair> pairs;
  for (std::size_t i = 0; i < kThreads; ++i) {
    pairs.push_back(connect_live(left, right));
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t k = 0; k < 5; ++k) {
        transfer_live(*pairs[i].client, *pairs[i].server, 30'000 + 100 * k, 50 * i + k);
        transfer_live(*pairs[i].server, *pairs[i].client, 100 * k, 50 * i + k);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(EngineTest, with_stack_runs_alone_whoever_calls_it) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kRounds = 500;
  Hosts hosts(GetParam());
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  LivePair pair = connect_live(left, right);
  std::uint64_t guarded = 0;  // Not atomic: the driver lock guards it.
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        left.with_stack([&](Stack& stack, Time) { guarded += stack.session_count(); });
      }
    });
  }
  for (std::uint64_t i = 0; i < 10; ++i) {
    transfer_live(*pair.client, *pair.server, 10'000, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(guarded, kThreads * kRounds);
}

TEST_P(EngineTest, sessions_come_and_go_while_others_transfer) {
  Hosts hosts(GetParam());
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  LivePair lasting = connect_live(left, right);
  std::atomic<bool> is_over{false};
  std::thread transfers([&] {
    for (std::uint64_t i = 0; !is_over.load(); ++i) {
      transfer_live(*lasting.client, *lasting.server, 50'000, i);
    }
  });
  for (std::uint64_t i = 0; i < 6; ++i) {
    LivePair passing = connect_live(left, right);
    transfer_live(*passing.server, *passing.client, 5000, i);
    PacketBytes into(1000);
    EXPECT_TRUE(passing.server->receive(into));  // Outstanding when its end comes.
  }
  is_over.store(true);
  transfers.join();
}

TEST_P(EngineTest, idle_engines_sleep) {
  Hosts hosts(GetParam());
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  const auto turns = [](Engine& engine) {
    return engine.with_stack([](Stack& stack, Time) { return stack.stats().turns; });
  };
  // Without a session in every mode, with an idle one in every mode but thread, which is to spin.
  constexpr std::uint64_t kFew = 300;  // A thread that spins makes as many in a millisecond.
  const auto expect_few = [&] {
    // What is left to do ends first: answers to delayed acknowledgements, and an adaptive spin.
    std::uint64_t last = 0;
    EXPECT_TRUE(eventually([&] {
      const std::uint64_t before = std::exchange(last, turns(left) + turns(right));
      std::this_thread::sleep_for(milliseconds(20));
      return last - before < kFew;
    }));
    const std::uint64_t before = turns(left) + turns(right);
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_LT(turns(left) + turns(right) - before, kFew);
  };
  expect_few();
  if (GetParam().mode != RunMode::kThread) {
    LivePair pair = connect_live(left, right);
    transfer_live(*pair.client, *pair.server, 100'000, 1);
    expect_few();
    transfer_live(*pair.server, *pair.client, 100'000, 2);  // And they wake up again.
  }
}

TEST_P(EngineTest, a_sleeping_engine_is_woken_by_packets_posts_and_operations) {
  Hosts hosts(GetParam());
  Engine& left = hosts.add();
  Engine& right = hosts.add();
  LivePair pair = connect_live(left, right);
  for (std::uint64_t i = 0; i < 8; ++i) {
    // One message, then silence that is long enough for an adaptive background driver to go to
    // sleep. The receiver's engine is driven by its background driver alone.
    Message message(2000, i);
    message.receive = pair.server->receive(message.received);
    std::this_thread::sleep_for(milliseconds(i % 4));
    message.send = pair.client->send(message.sent, message.tag);
    ASSERT_TRUE(message.send && message.receive);
    EXPECT_EQ(finished(*pair.client, *message.send).error, SessionError::kNone);
    EXPECT_EQ(finished(*pair.server, *message.receive).error, SessionError::kNone);
    EXPECT_TRUE(message.received == message.sent);
  }
}

// These wait for peer timeouts, so they run with all settings at once.

TEST(Engine, a_peer_is_answered_while_its_application_does_nothing) {
  static constexpr Duration kPeerTimeout = milliseconds(500);
  struct Case {
    explicit Case(const Setting& setting)
        : hosts(setting, kPeerTimeout), into(100'000), data(pattern(into.size(), 1)) {
      Engine& left = hosts.add();
      pair = connect_live(left, hosts.add());
      receive = pair.client->receive(into);
    }
    Hosts hosts;
    PacketBytes into;
    PacketBytes data;
    LivePair pair;
    std::optional<RequestId> receive;
  };
  std::vector<std::unique_ptr<Case>> cases;
  for (const Setting& setting : kSettings) {
    cases.push_back(std::make_unique<Case>(setting));
  }
  // Neither end is driven by anybody but its background driver; this is the nothing that
  // applications do.
  std::this_thread::sleep_for(3 * kPeerTimeout);
  for (const auto& one : cases) {
    ASSERT_TRUE(one->receive);
    EXPECT_FALSE(one->pair.client->test(*one->receive)) << "neither an error nor a message";
    EXPECT_EQ(one->pair.client->life(), Channel::Life::kOpen);
    ASSERT_TRUE(one->pair.server->send(one->data, 3));
    const auto done = finished(*one->pair.client, *one->receive, one->pair.server.get());
    EXPECT_EQ(done.error, SessionError::kNone);
    EXPECT_TRUE(one->into == one->data);
  }
}

/// A connection whose other end vanishes without a word. That end is held by its channel alone: a
/// Connection would close it, and tell the peer.
struct Vanishing {
  explicit Vanishing(const Setting& setting) : hosts(setting, milliseconds(300)) {
    left = &hosts.add();
    Engine& right = hosts.add();
    const auto backlog = std::make_shared<Backlog>();
    const ConnectHandle handle =
        right.with_stack([&](Stack& stack, Time) { return stack.listen(backlog); });
    client = left->with_stack([&](Stack& stack, Time now) { return stack.connect(handle, now); });
    EXPECT_TRUE(eventually([&] {
      server = server ? server : backlog->take();
      return client->life() == Channel::Life::kOpen && server != nullptr;
    })) << "background drivers connect, with nobody driving";
    first = client->receive(into);
    second = client->receive(into);
    left->drive();
  }
  void vanish() {
    hosts.destroy(1);
    EXPECT_EQ(server->life(), Channel::Life::kEnded);
  }

  Hosts hosts;
  Engine* left = nullptr;
  std::shared_ptr<Channel> client;
  std::shared_ptr<Channel> server;
  PacketBytes into = PacketBytes(100);
  std::optional<RequestId> first;
  std::optional<RequestId> second;
};

TEST(Engine, receives_from_a_peer_that_vanished_fail_whether_callers_poll_or_not) {
  for (const bool is_polled : {true, false}) {
    std::vector<std::unique_ptr<Vanishing>> cases;
    for (const Setting& setting : kSettings) {
      cases.push_back(std::make_unique<Vanishing>(setting));
      ASSERT_TRUE(cases.back()->first && cases.back()->second);
    }
    for (const auto& one : cases) {
      one->vanish();
    }
    for (const auto& one : cases) {
      for (const RequestId request : {*one->first, *one->second}) {
        std::optional<Channel::Completion> done;
        ASSERT_TRUE(eventually([&] {
          if (is_polled) {
            one->left->drive();
          }
          return (done = one->client->test(request)).has_value();
        }));
        EXPECT_EQ(done->error, SessionError::kPeerTimeout);
      }
      ASSERT_TRUE(eventually([&] { return one->client->life() == Channel::Life::kEnded; }));
      EXPECT_EQ(one->client->end_error(), SessionError::kPeerTimeout);
    }
  }
}

TEST(BackgroundDriver, a_post_is_heard_by_one_that_is_just_going_to_sleep) {
  // It sleeps after every piece of work. A post that it misses is one that nobody mentions again:
  // nothing is outstanding on either side, and what follows waits for it.
  constexpr int kRounds = 1000;
  for (const Medium medium : {Medium::kMemory, Medium::kUdp}) {
    Hosts hosts({medium, RunMode::kAdaptive}, seconds(60), Duration::zero());
    Engine& left = hosts.add();
    Engine& right = hosts.add();
    const auto backlog = std::make_shared<Backlog>();
    const ConnectHandle handle =
        right.with_stack([&](Stack& stack, Time) { return stack.listen(backlog); });
    const auto client =
        left.with_stack([&](Stack& stack, Time now) { return stack.connect(handle, now); });
    std::shared_ptr<Channel> server;
    ASSERT_TRUE(eventually([&] { return (server = backlog->take()) != nullptr; }));
    const auto post = [](Engine& engine, Channel& channel, bool is_send) {
      const auto request = is_send ? channel.send({}, 0) : channel.receive({});
      engine.drive();
      return request && eventually([&] { return channel.test(*request).has_value(); });
    };
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(post(left, *client, true)) << round;
      ASSERT_TRUE(post(right, *server, false)) << round;
    }
  }
}

TEST(BackgroundDriver, an_engines_counters_are_published_while_it_works_and_while_nothing_happens) {
  for (const RunMode mode : {RunMode::kThread, RunMode::kAdaptive, RunMode::kInline}) {
    MemoryNetwork network(9000);
    const StatLayout layout = StatPublisher::layout(1);
    std::vector<std::uint64_t> words(layout.block_bytes() / sizeof(std::uint64_t));
    std::vector<std::uint64_t> values(layout.value_words());
    BackgroundDriver driver({.mode = mode, .core = {}});
    Engine& engine = driver.add(
        std::make_unique<Stack>(std::make_unique<MemoryDatapath>(network, 0), StackConfig{}),
        std::make_unique<StatPublisher>(EngineLabels{.device = "eth0"}, words));
    const auto is_published_again = [&] {
      const std::uint64_t last = values[0];  // The time.
      return SeqWords(words).try_read(values) && values[0] > last;
    };
    for (int times = 0; times < 2; ++times) {
      ASSERT_TRUE(eventually(is_published_again)) << "nobody drives";
    }
    ASSERT_TRUE(eventually([&] {
      engine.drive();
      return is_published_again();
    }));
  }
}

TEST(BackgroundDriver, without_engines_it_ends) {
  for (const RunMode mode : {RunMode::kThread, RunMode::kAdaptive, RunMode::kInline}) {
    const BackgroundDriver driver({.mode = mode, .core = {}});
  }
}

TEST(BackgroundDriver, engines_can_be_added_while_others_work) {
  Hosts hosts({Medium::kMemory, RunMode::kAdaptive});
  Engine& left = hosts.add();
  Engine& right = hosts.add_beside();
  LivePair pair = connect_live(left, right);
  std::vector<LivePair> more;
  for (std::uint64_t i = 0; i < 8; ++i) {
    more.push_back(connect_live(left, hosts.add_beside()));
    transfer_live(*pair.client, *pair.server, 10'000, i);
    transfer_live(*more.back().client, *more.back().server, 10'000, i);
  }
}

}  // namespace
}  // namespace harp::engine_test
