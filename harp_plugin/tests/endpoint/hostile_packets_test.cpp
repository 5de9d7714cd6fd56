// A connection over UDP that transfers verified data while somebody throws at its ports whatever he
// can: noise, forgeries, and copies of its own packets, whole and damaged.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "datapath/packets.hpp"
#include "datapath/tap.hpp"
#include "datapath/udp.hpp"
#include "protocol/packet.hpp"
#include "runtime/clock.hpp"
#include "runtime/engine.hpp"
#include "runtime/forgery.hpp"
#include "runtime/keeper.hpp"
#include "runtime/live.hpp"
#include "runtime/stack.hpp"
#include "sync/mutex.hpp"

namespace harp::hostile_packets_test {
namespace {

std::unique_ptr<UdpDatapath> open_loopback() {
  Address local;
  local.ip[0] = std::byte{127};
  local.ip[3] = std::byte{1};
  std::string error;
  auto datapath = UdpDatapath::open({.local = local}, &error);
  EXPECT_NE(datapath, nullptr) << error;
  return datapath;
}

/// Packets of one direction, as somebody on the path sees them.
class Recording {
 public:
  void add(std::span<const std::byte> head, std::span<const std::byte> payload) {
    constexpr std::size_t kMax = 4096;
    const MutexLock lock(mutex_);
    if (packets_.size() < kMax) {
      packets_.push_back(joined(head, payload));
    } else {
      packets_[next_++ % kMax] = joined(head, payload);
    }
  }
  PacketBytes any(Rng& rng) {
    const MutexLock lock(mutex_);
    return packets_[rng.below(packets_.size())];
  }
  std::set<PathIndex> paths() {
    const MutexLock lock(mutex_);
    std::set<PathIndex> paths;
    for (const PacketBytes& packet : packets_) {
      const auto view = parse_packet(packet);
      if (view) {
        paths.insert(view->header.path);
      }
    }
    return paths;
  }

 private:
  Mutex mutex_;
  std::vector<PacketBytes> packets_ HARP_GUARDED_BY(mutex_);
  std::size_t next_ HARP_GUARDED_BY(mutex_) = 0;
};

/// An engine on the loopback interface whose packets are written down.
struct Site {
  explicit Site(RunMode mode) : keeper({.mode = mode, .core = {}}) {
    auto tap = std::make_unique<Tap>(open_loopback());
    tap->watcher = [this](const Route&, auto head, auto payload) {
      recording.add(head, payload);
      return true;
    };
    address = tap->address();
    StackConfig config;
    config.session.peer_timeout = std::chrono::seconds(60);
    config.session.min_rto = std::chrono::milliseconds(10);
    engine = &keeper.add(std::make_unique<Stack>(std::move(tap), config));
  }
  struct Counters {
    std::uint64_t strangers = 0;
    std::uint64_t bad_auth = 0;
    std::uint64_t bad_packets = 0;
    std::uint64_t failed = 0;
    std::size_t sessions = 0;
  };
  Counters counters() const {
    return engine->with_stack([](Stack& stack, Time) {
      const SessionStats sessions = stack.session_stats();
      return Counters{.strangers = stack.stats().strangers,
                      .bad_auth = sessions.bad_auth,
                      .bad_packets = sessions.bad_packets,
                      .failed = stack.stats().sessions_failed,
                      .sessions = stack.session_count()};
    });
  }

  Recording recording;
  Address address;
  Keeper keeper;
  Engine* engine = nullptr;
};

class Attacker {
 public:
  Attacker(Site& client, Site& server)
      : client_(client), server_(server), thread_([this] { run(); }) {}
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;
  ~Attacker() { stop(); }
  /// Returns how many packets it has sent.
  std::uint64_t stop() {
    is_over_.store(true);
    if (thread_.joinable()) {
      thread_.join();
    }
    return datapath_->stats().packets_sent;
  }

 private:
  void run() {
    while (!is_over_.load()) {
      std::vector<PacketBytes> burst;
      while (datapath_->room() > burst.size() && burst.size() < 64) {
        burst.push_back(next());
      }
      for (const PacketBytes& packet : burst) {
        const Site& target = rng_.chance(0.5) ? client_ : server_;
        datapath_->send({.peer = target.address, .local_port = 0}, {}, packet);
      }
      while (!datapath_->flush(clock_now()) && !is_over_.load()) {
        std::this_thread::yield();
      }
      datapath_->discard();
    }
  }
  PacketBytes next() {
    const PacketBytes seen =
        rng_.chance(0.5) ? client_.recording.any(rng_) : server_.recording.any(rng_);
    const Cid cid = peek_cid(seen).value_or(0);
    switch (rng_.below(5)) {
      case 0:
        return random_packet(rng_, 1400);
      case 1:
        return any_forged_packet(cid, rng_);
      case 2: {
        constexpr std::array<PacketType, 3> kTypes{
            PacketType::kRst, PacketType::kFin, PacketType::kAck};
        return forged_packet(kTypes.at(rng_.below(kTypes.size())), cid, rng_, 8);
      }
      case 3:
        return seen;  // A replay; at the wrong end, a reflection.
      default:
        return mutated(seen, rng_);
    }
  }

  Site& client_;
  Site& server_;
  Rng rng_{1};
  std::unique_ptr<UdpDatapath> datapath_ = open_loopback();
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

void expect_counted(const Site::Counters& before, const Site::Counters& after) {
  EXPECT_GT(after.strangers, before.strangers);
  EXPECT_GT(after.bad_auth, before.bad_auth);
  EXPECT_GT(after.bad_packets, before.bad_packets);
  EXPECT_EQ(after.failed, 0U);
  EXPECT_EQ(after.sessions, 1U);
}

void transfer_under_attack(RunMode mode) {
  constexpr Duration kAttack = std::chrono::milliseconds(1000);
  Site client(mode);
  Site server(mode);
  LivePair pair = connect_live(*client.engine, *server.engine);
  // The peers learn one another's flows first: what is replayed then is old.
  std::uint64_t round = 0;
  while (client.recording.paths().size() < StackConfig{}.paths) {
    ASSERT_LT(round, 1000U);
    transfer_live(*pair.client, *pair.server, 50'000, ++round);
    transfer_live(*pair.server, *pair.client, 50'000, ++round);
  }
  const auto client_before = client.counters();
  const auto server_before = server.counters();
  Attacker attacker(client, server);
  const Time end = clock_now() + kAttack;
  const std::uint64_t first = round;
  while (clock_now() < end || round < first + 4) {
    transfer_live(*pair.client, *pair.server, 100'000, ++round);
    transfer_live(*pair.server, *pair.client, 100'000, ++round);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  EXPECT_GT(attacker.stop(), 1000U);
  transfer_live(*pair.client, *pair.server, 1'000'000, ++round);
  expect_counted(client_before, client.counters());
  expect_counted(server_before, server.counters());
}

TEST(HostilePackets, do_not_touch_data_between_engines_with_threads) {
  transfer_under_attack(RunMode::kAdaptive);
}

TEST(HostilePackets, do_not_touch_data_between_engines_that_callers_drive) {
  transfer_under_attack(RunMode::kInline);
}

}  // namespace
}  // namespace harp::hostile_packets_test
