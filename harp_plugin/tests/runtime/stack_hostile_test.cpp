// What a stack does with packets of somebody who knows no secret, in virtual time.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "protocol/auth.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/forgery.hpp"
#include "runtime/stack.hpp"
#include "runtime/world.hpp"

namespace harp::stack_hostile_test {
namespace {

constexpr std::size_t kAttacker = 9;  ///< Its endpoint.

/// A client and a server, every packet between them written down, and somebody else on the network.
struct Scene {
  Scene() {
    client.tap->watcher = [this](const Route&, auto head, auto payload) {
      to_server.push_back(joined(head, payload));
      return true;
    };
    server.tap->watcher = [this](const Route& route, auto head, auto payload) {
      to_client.push_back(joined(head, payload));
      to_attacker += route.peer == MemoryDatapath::address_of(kAttacker) ? 1 : 0;
      return true;
    };
  }
  void connect() { ends = harp::connect(world, client, server); }
  void inject(const Node& to, std::span<const std::byte> packet, std::uint16_t local_port = 0) {
    attacker.send({.peer = to.stack->datapath().address(), .local_port = local_port}, packet, {});
    (void)attacker.flush(world.now);
    (void)to.stack->turn(world.now);
  }
  /// How the client addresses the server's session.
  Cid server_cid() const { return peek_cid(to_server.back()).value_or(0); }
  Cid client_cid() const { return peek_cid(to_client.back()).value_or(0); }
  void expect_alive() {
    transfer(world, *ends.client, *ends.server, 50'000, 1);
    transfer(world, *ends.server, *ends.client, 50'000, 2);
    EXPECT_EQ(client.stack->session_count(), 1U);
    EXPECT_EQ(server.stack->session_count(), 1U);
    EXPECT_EQ(client.stack->stats().sessions_failed + server.stack->stats().sessions_failed, 0U);
  }

  World world;
  Node& client = world.add();
  Node& server = world.add();
  MemoryDatapath attacker{world.network, kAttacker};
  Ends ends;
  std::vector<PacketBytes> to_server;
  std::vector<PacketBytes> to_client;
  std::size_t to_attacker = 0;
};

TEST(HostileStack, random_packets_change_nothing_and_are_counted) {
  Scene scene;
  scene.connect();
  Rng rng(1);
  constexpr int kPackets = 20'000;
  const auto counted = [&] {
    const SessionStats stats = scene.server.stack->session_stats();
    return scene.server.stack->stats().strangers + stats.bad_auth + stats.bad_packets;
  };
  const std::uint64_t before = counted();
  for (int i = 0; i < kPackets; ++i) {
    scene.inject(scene.server, random_packet(rng, 300));
  }
  EXPECT_EQ(counted() - before, std::uint64_t{kPackets});
  scene.expect_alive();
  EXPECT_EQ(scene.to_attacker, 0U) << "not even an answer";
}

TEST(HostileStack, packets_of_every_type_with_a_wrong_mac_are_counted_and_ignored) {
  Scene scene;
  scene.connect();
  scene.expect_alive();
  Rng rng(2);
  const Cid cid = scene.server_cid();
  for (unsigned type = 1; type <= 10; ++type) {
    for (int i = 0; i < 200; ++i) {
      const auto before = scene.server.stack->session_stats();
      const std::uint64_t strangers = scene.server.stack->stats().strangers;
      scene.inject(scene.server,
                   forged_packet(static_cast<PacketType>(type), cid, rng, rng.below(100)));
      const auto after = scene.server.stack->session_stats();
      if (type == 3 || type == 4) {  // A handshake is over: its packets mean nothing any more.
        ASSERT_EQ(after.data_packets_received, before.data_packets_received);
      } else {
        ASSERT_EQ(after.bad_auth + after.bad_packets, before.bad_auth + before.bad_packets + 1)
            << type;
      }
      ASSERT_EQ(scene.server.stack->stats().strangers, strangers);
    }
  }
  scene.expect_alive();
  EXPECT_EQ(scene.to_attacker, 0U);
}

TEST(HostileStack, forged_packets_during_the_handshake_do_not_hinder_it) {
  Rng rng(3);
  for (int round = 0; round < 20; ++round) {
    Scene scene;
    scene.ends.handle = scene.server.stack->listen(scene.ends.backlog);
    scene.ends.client = scene.client.stack->connect(scene.ends.handle, scene.world.now);
    scene.client.stack->turn(scene.world.now);
    scene.server.stack->turn(scene.world.now);
    for (int i = 0; i < 200; ++i) {
      scene.inject(scene.server, any_forged_packet(scene.client_cid(), rng));
      const Cid any_cid = peek_cid(scene.to_client.back()).value_or(0);
      scene.inject(scene.client, any_forged_packet(any_cid, rng));
      scene.inject(scene.server, mutated(scene.to_server.front(), rng));
      scene.inject(scene.client, mutated(scene.to_client.front(), rng));
    }
    ASSERT_TRUE(scene.world.run_until([&] {
      scene.ends.server = scene.ends.server ? scene.ends.server : scene.ends.backlog->take();
      return scene.ends.server && scene.ends.client->life() == Channel::Life::kOpen;
    }));
    scene.expect_alive();
  }
}

TEST(HostileStack, packets_for_a_session_that_had_the_slot_before_are_ignored) {
  Scene scene;
  scene.connect();
  scene.expect_alive();
  const std::vector<PacketBytes> old = scene.to_server;
  const Cid old_cid = scene.server_cid();
  scene.client.stack->close(*scene.ends.client, scene.world.now);
  scene.server.stack->close(*scene.ends.server, scene.world.now);
  ASSERT_TRUE(scene.world.run_until([&] {
    return scene.client.stack->session_count() == 0 && scene.server.stack->session_count() == 0;
  }));
  scene.server.stack->stop_listening(scene.ends.handle.listen_id, scene.world.now);
  scene.ends = {};
  scene.connect();
  transfer(scene.world, *scene.ends.client, *scene.ends.server, 100);
  constexpr Cid kSlotMask = 0xfff;
  ASSERT_EQ(scene.server_cid() & kSlotMask, old_cid & kSlotMask) << "the slot is the same";
  ASSERT_NE(scene.server_cid(), old_cid) << "and the generation is not";
  const auto before = scene.server.stack->session_stats();
  std::size_t sent = 0;
  for (const PacketBytes& packet : old) {
    const bool is_syn = peek_cid(packet) == Cid{0};
    sent += is_syn ? 0 : 1;
    scene.inject(scene.server, packet);
  }
  ASSERT_GT(sent, 30U);
  EXPECT_EQ(scene.server.stack->session_stats().bad_packets - before.bad_packets, sent);
  EXPECT_EQ(scene.server.stack->session_stats().data_packets_received,
            before.data_packets_received);
  scene.expect_alive();
}

TEST(HostileStack, replayed_damaged_and_reflected_packets_leave_the_data_as_it_is) {
  Scene scene;
  scene.connect();
  Rng rng(5);
  for (std::uint64_t round = 0; round < 30; ++round) {
    Message up(20'000, round);
    Message down(20'000, round + 100);
    up.post(*scene.ends.client, *scene.ends.server);
    down.post(*scene.ends.server, *scene.ends.client);
    for (int i = 0; i < 20; ++i) {
      scene.world.run_for(microseconds(1));
      for (int k = 0; k < 10; ++k) {
        const PacketBytes up_packet = scene.to_server[rng.below(scene.to_server.size())];
        const PacketBytes down_packet = scene.to_client[rng.below(scene.to_client.size())];
        scene.inject(scene.server, up_packet);
        scene.inject(scene.client, down_packet);
        scene.inject(scene.server, mutated(up_packet, rng));
        scene.inject(scene.client, mutated(down_packet, rng));
        scene.inject(scene.client, up_packet);
        scene.inject(scene.server, down_packet);
      }
    }
    ASSERT_TRUE(scene.world.run_until([&] {
      const bool is_up = up.is_done(*scene.ends.client, *scene.ends.server);
      return down.is_done(*scene.ends.server, *scene.ends.client) && is_up;
    }));
    up.expect_delivered();
    down.expect_delivered();
  }
  EXPECT_GT(scene.server.stack->session_stats().bad_auth, 0U);
  EXPECT_GT(scene.server.stack->session_stats().duplicates, 0U);
  EXPECT_GT(scene.server.stack->stats().strangers, 0U);
  scene.expect_alive();
}

TEST(HostileStack, what_is_sent_to_a_client_in_its_own_name_is_not_believed) {
  Scene scene;
  scene.connect();
  scene.expect_alive();
  const Cid client_cid = scene.client_cid();
  const auto before = scene.client.stack->session_stats();
  std::size_t sent = 0;
  for (PacketBytes packet : std::vector(scene.to_server)) {
    const auto view = parse_packet(packet);
    if (!view || view->header.dst_cid == 0) {
      continue;
    }
    constexpr std::size_t kCidAt = 4;
    std::memcpy(packet.data() + kCidAt, &client_cid, sizeof(client_cid));
    scene.inject(scene.client, packet);
    ++sent;
  }
  ASSERT_GT(sent, 30U);
  EXPECT_EQ(scene.client.stack->session_stats().bad_auth - before.bad_auth, sent);
  scene.expect_alive();
}

PacketBytes syn_packet(const ConnectHandle& handle, const Secret& secret, Rng& rng) {
  Syn syn{.listen_id = handle.listen_id,
          .offer = {.cid = static_cast<Cid>(rng()) | 1,
                    .window_packets = 1024,
                    .pss = 1408,
                    .paths = 8,
                    .eager_packets = 100}};
  for (std::byte& byte : syn.nonce) {
    byte = static_cast<std::byte>(rng());
  }
  PacketBytes body(kSynBytes);
  EXPECT_EQ(encode_syn(syn, body), kSynBytes);
  PacketBytes packet(kHeaderBytes);
  seal_packet(syn_key(secret),
              {.type = PacketType::kSyn, .len = static_cast<std::uint16_t>(kSynBytes)},
              body,
              packet);
  packet.insert(packet.end(), body.begin(), body.end());
  return packet;
}

TEST(HostileStack, a_flood_of_syns_without_the_secret_leaves_no_session) {
  Scene scene;
  scene.connect();
  Rng rng(6);
  const std::uint64_t before = scene.server.stack->stats().strangers;
  const std::size_t sent_before = scene.to_client.size();
  constexpr std::uint64_t kSyns = 10'000;
  for (std::uint64_t i = 0; i < kSyns; ++i) {
    Secret guess{};
    guess[0] = static_cast<std::byte>(rng());
    guess[1] = static_cast<std::byte>(rng());
    scene.inject(scene.server, syn_packet(scene.ends.handle, guess, rng));
    ConnectHandle elsewhere = scene.ends.handle;
    elsewhere.listen_id = rng();
    scene.inject(scene.server, syn_packet(elsewhere, scene.ends.handle.secret, rng));
  }
  EXPECT_EQ(scene.server.stack->stats().strangers - before, 2 * kSyns);
  EXPECT_EQ(scene.server.stack->session_count(), 1U);
  EXPECT_EQ(scene.server.stack->stats().sessions_begun, 1U);
  EXPECT_EQ(scene.to_client.size(), sent_before) << "and no answer";
  scene.expect_alive();
  // The same SYN with the secret is one that makes a session: it is the secret that was wrong.
  scene.inject(scene.server, syn_packet(scene.ends.handle, scene.ends.handle.secret, rng));
  EXPECT_EQ(scene.server.stack->session_count(), 2U);
}

TEST(HostileStack, a_client_with_a_wrong_secret_learns_nothing_but_a_timeout) {
  Scene scene;
  scene.connect();
  ConnectHandle stolen = scene.ends.handle;
  stolen.secret[15] ^= std::byte{1};
  const std::size_t sent_before = scene.to_client.size();
  const auto channel = scene.client.stack->connect(stolen, scene.world.now);
  EXPECT_TRUE(scene.world.run_until([&] { return channel->life() == Channel::Life::kEnded; }));
  EXPECT_EQ(channel->end_error(), SessionError::kConnectTimeout);
  EXPECT_EQ(scene.to_client.size(), sent_before);
  EXPECT_EQ(scene.server.stack->session_count(), 1U);
}

TEST(HostileStack, a_replayed_syn_makes_no_second_session) {
  Scene scene;
  scene.ends.handle = scene.server.stack->listen(scene.ends.backlog);
  scene.ends.client = scene.client.stack->connect(scene.ends.handle, scene.world.now);
  scene.client.stack->turn(scene.world.now);
  ASSERT_EQ(scene.to_server.size(), 1U);
  const PacketBytes syn = scene.to_server.front();
  for (int i = 0; i < 10; ++i) {
    scene.inject(scene.server, syn);
  }
  EXPECT_EQ(scene.server.stack->session_count(), 1U);
  ASSERT_TRUE(scene.world.run_until([&] {
    scene.ends.server = scene.ends.server ? scene.ends.server : scene.ends.backlog->take();
    return scene.ends.server && scene.ends.client->life() == Channel::Life::kOpen;
  }));
  for (int i = 0; i < 10; ++i) {
    scene.inject(scene.server, syn);
  }
  scene.expect_alive();
  EXPECT_EQ(scene.server.stack->stats().sessions_begun, 1U);
  EXPECT_EQ(scene.ends.backlog->take(), nullptr);
}

TEST(HostileStack, a_server_learns_its_routes_from_authentic_packets_only) {
  Scene scene;
  scene.ends.handle = scene.server.stack->listen(scene.ends.backlog);
  scene.ends.client = scene.client.stack->connect(scene.ends.handle, scene.world.now);
  scene.client.stack->turn(scene.world.now);
  scene.server.stack->turn(scene.world.now);
  ASSERT_FALSE(scene.to_client.empty());
  // The server knows one path now. The attacker claims all others, before the client has used them.
  ASSERT_TRUE(
      scene.world.run_until([&] { return scene.ends.client->life() == Channel::Life::kOpen; }));
  Rng rng(8);
  const PacketBytes conf = scene.to_server.back();
  const Cid cid = peek_cid(conf).value_or(0);
  ASSERT_NE(cid, 0U);
  for (PathIndex path = 0; path < kMaxPaths; ++path) {
    for (int i = 0; i < 5; ++i) {
      PacketBytes packet = i == 0 ? conf : any_forged_packet(cid, rng);
      constexpr std::size_t kPathAt = 2;
      std::memcpy(packet.data() + kPathAt, &path, sizeof(path));
      const auto view = parse_packet(conf);
      if (i == 0 && view && view->header.path == path) {
        continue;  // This one would be the genuine one.
      }
      scene.inject(scene.server, packet);
    }
  }
  ASSERT_TRUE(scene.world.run_until([&] {
    scene.ends.server = scene.ends.server ? scene.ends.server : scene.ends.backlog->take();
    return scene.ends.server != nullptr;
  }));
  for (int i = 0; i < 10; ++i) {
    scene.expect_alive();
  }
  EXPECT_EQ(scene.to_attacker, 0U);
}

TEST(HostileStack, who_is_faster_with_a_packet_than_its_sender_does_not_get_its_answers) {
  Scene scene;
  scene.connect();
  std::size_t forwarded = 0;  ///< The server sees most paths' first packets so.
  const auto write_down = scene.client.tap->watcher;
  scene.client.tap->watcher = [&](const Route& route, auto head, auto payload) {
    scene.inject(scene.server, joined(head, payload), /*local_port=*/63);
    ++forwarded;
    return write_down(route, head, payload);
  };
  scene.expect_alive();
  EXPECT_GT(forwarded, 36U) << "50000 bytes are so many packets";
  EXPECT_EQ(scene.to_attacker, 0U);
}

}  // namespace
}  // namespace harp::stack_hostile_test
