// What is published of a stack, read by the file's own tables as another process would.
#include "runtime/stat_publisher.hpp"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/world.hpp"
#include "sync/seq_words.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp::stat_publisher_test {
namespace {

struct Record {
  std::map<std::string, std::uint64_t> numbers;
  std::map<std::string, std::string> texts;
  std::vector<Record> below;
  std::uint64_t there_are = 0;  ///< Records below, shown or not.
};

std::string text_of(std::span<const std::uint64_t> words) {
  std::string text;
  for (const std::byte one : std::as_bytes(words)) {
    if (one != std::byte{0}) {
      text += static_cast<char>(one);
    }
  }
  return text;
}

Record read_record(StatTable table, std::span<const std::uint64_t> words) {
  Record record;
  for (const StatField& field : table) {
    const std::string name(field.name);
    if (field.text_words != 0) {
      record.texts[name] = text_of(words.first(field.words()));
    } else {
      record.numbers[name] = words.front();
    }
    words = words.subspan(field.words());
  }
  return record;
}

/// An engine's block, and a reader of it.
struct Block {
  Block() : words(layout.block_bytes() / sizeof(std::uint64_t)) {}

  StatPublisher publisher() {
    return {{.device = "eth0", .index = 3, .datapath = "udp", .mode = "inline"}, words};
  }
  Record read() const {
    std::vector<std::uint64_t> values(layout.value_words());
    EXPECT_TRUE(SeqWords(std::span(const_cast<std::uint64_t*>(words.data()), words.size()))
                    .try_read(values));
    const std::span<const std::uint64_t> all(values);
    Record engine = read_record(layout.engine, all.subspan(StatLayout::kEngineHeadWords));
    engine.numbers["published_ns"] = all[0];
    engine.there_are = all[2];
    for (std::uint64_t i = 0; i < all[1]; ++i) {
      auto rest = all.subspan(StatLayout::kEngineHeadWords + stat_words(layout.engine) +
                              i * layout.session_words());
      Record session = read_record(layout.session, rest.subspan(StatLayout::kSessionHeadWords));
      session.there_are = rest[1];
      const std::uint64_t paths = rest[0];
      rest = rest.subspan(StatLayout::kSessionHeadWords + stat_words(layout.session));
      for (std::uint64_t path = 0; path < paths; ++path) {
        session.below.push_back(
            read_record(layout.path, rest.subspan(path * stat_words(layout.path))));
      }
      engine.below.push_back(session);
    }
    return engine;
  }

  StatLayout layout = StatPublisher::layout(1);
  std::vector<std::uint64_t> words;
};

TEST(StatPublisher, an_engine_without_sessions_has_its_labels_and_its_turns) {
  World world;
  const Node& node = world.add();
  for (int i = 0; i < 3; ++i) {
    (void)node.stack->turn(world.now);
  }
  Block block;
  block.publisher().publish(*node.stack, world.now);
  Record engine = block.read();
  EXPECT_EQ(engine.texts["device"], "eth0");
  EXPECT_EQ(engine.numbers["engine"], 3U);
  EXPECT_EQ(engine.texts["datapath"], "udp");
  EXPECT_EQ(engine.texts["mode"], "inline");
  EXPECT_EQ(engine.numbers["mtu_bytes"], 1500U);
  EXPECT_EQ(engine.numbers["turns"], 3U);
  EXPECT_EQ(engine.numbers["idle_turns"], 3U);
  EXPECT_EQ(engine.numbers["sessions"], 0U);
  EXPECT_EQ(engine.numbers["published_ns"],
            static_cast<std::uint64_t>(world.now.time_since_epoch().count()));
  EXPECT_TRUE(engine.below.empty());
}

TEST(StatPublisher, both_ends_of_a_transfer_count_what_was_sent) {
  constexpr std::size_t kBytes = 500'000;
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const Ends ends = connect(world, left, right);
  transfer(world, *ends.client, *ends.server, kBytes);
  Block from;
  Block to;
  from.publisher().publish(*left.stack, world.now);
  to.publisher().publish(*right.stack, world.now);
  Record sender = from.read();
  Record receiver = to.read();
  ASSERT_EQ(sender.below.size(), 1U);
  Record& session = sender.below[0];
  EXPECT_EQ(session.numbers["data_bytes_sent"] - session.numbers["data_bytes_retransmitted"],
            kBytes);
  EXPECT_EQ(sender.numbers["data_bytes_sent"], session.numbers["data_bytes_sent"])
      << "the engine's is the sum";
  EXPECT_EQ(receiver.numbers["bytes_copied"], kBytes);
  EXPECT_GT(sender.numbers["wire_bytes_sent"], kBytes);
  EXPECT_EQ(sender.numbers["wire_packets_sent"], left.stack->datapath().stats().packets_sent);
  EXPECT_EQ(session.texts["state"], "open");
  EXPECT_EQ(session.texts["peer"], receiver.texts["address"]);
  EXPECT_EQ(session.numbers["session"] & 0xfffU, 0U) << "the first slot's";
  EXPECT_GT(session.numbers["smoothed_rtt_ns"], 0U);
  EXPECT_GT(session.numbers["minimum_rtt_ns"], 0U);
  EXPECT_GE(session.numbers["window_packets"], 1U);
  EXPECT_EQ(session.numbers["in_flight_packets"], 0U);
  EXPECT_EQ(session.numbers["payload_bytes"], 1408U);
  EXPECT_GT(session.numbers["age_ns"], 0U);
  EXPECT_EQ(session.there_are, 8U);
  ASSERT_EQ(session.below.size(), 8U);
  for (std::size_t path = 0; path < session.below.size(); ++path) {
    EXPECT_EQ(session.below[path].numbers["path"], path);
    EXPECT_EQ(session.below[path].numbers["is_quarantined"], 0U);
  }
}

TEST_F(StackPair, what_is_in_flight_is_shown_by_session_and_by_path) {
  const PacketBytes data(100'000);
  ASSERT_TRUE(ends.client->send(data, 0));
  (void)left.stack->turn(world.now);
  Block block;
  block.publisher().publish(*left.stack, world.now);
  Record session = block.read().below.at(0);
  EXPECT_GT(session.numbers["in_flight_packets"], 0U);
  std::uint64_t on_paths = 0;
  for (Record& path : session.below) {
    on_paths += path.numbers["in_flight_packets"];
  }
  EXPECT_EQ(on_paths, session.numbers["in_flight_packets"]);
}

TEST_F(StackPair, a_session_that_is_closed_says_so_and_leaves) {
  left.stack->close(*ends.client, world.now);
  Block block;
  block.publisher().publish(*left.stack, world.now);
  EXPECT_EQ(block.read().below.at(0).texts["state"], "closing");
  right.stack->close(*ends.server, world.now);
  ASSERT_TRUE(world.run_until([&] { return left.stack->session_count() == 0; }));
  block.publisher().publish(*left.stack, world.now);
  Record engine = block.read();
  EXPECT_TRUE(engine.below.empty());
  EXPECT_EQ(engine.numbers["sessions_begun"], 1U);
  EXPECT_GT(engine.numbers["packets_sent"], 0U) << "of sessions that were";
}

TEST(StatPublisher, what_there_is_no_room_for_is_counted) {
  World world;
  StackConfig many_paths;
  many_paths.paths = 40;
  Node& left = world.add(many_paths);
  const Node& right = world.add(many_paths);
  const auto backlog = std::make_shared<Backlog>();
  const ConnectHandle handle = right.stack->listen(backlog);
  std::vector<std::shared_ptr<Channel>> channels;
  for (std::size_t i = 0; i < StatPublisher::kMaxSessions + 5; ++i) {
    channels.push_back(left.stack->connect(handle, world.now));
  }
  ASSERT_TRUE(world.run_until([&] {
    return std::ranges::all_of(channels,
                               [](const auto& one) { return one->life() == Channel::Life::kOpen; });
  }));
  Block block;
  block.publisher().publish(*left.stack, world.now);
  Record engine = block.read();
  EXPECT_EQ(engine.below.size(), StatPublisher::kMaxSessions);
  EXPECT_EQ(engine.there_are, StatPublisher::kMaxSessions + 5);
  for (Record& session : engine.below) {
    EXPECT_EQ(session.below.size(), StatPublisher::kMaxPaths);
    EXPECT_EQ(session.there_are, 40U);
    EXPECT_EQ(session.texts["state"], "open");
    EXPECT_EQ(session.below.back().numbers["path"], StatPublisher::kMaxPaths - 1);
  }
}

TEST(StatPublisher, the_child_of_a_fork_leaves_the_block_alone) {
  World world;
  const Node& node = world.add();
  Block block;
  StatPublisher publisher = block.publisher();
  publisher.publish(*node.stack, world.now);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto before = block.words;
    (void)node.stack->turn(world.now);
    publisher.publish(*node.stack, world.now);
    ::_exit(block.words == before ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(StackPair, a_reader_beside_it_sees_counters_that_belong_together) {
  Block block;
  StatPublisher publisher = block.publisher();
  publisher.publish(*left.stack, world.now);
  std::atomic<bool> is_over{false};
  std::atomic<int> reads{0};
  std::uint64_t wrong = 0;
  std::thread reader([&] {
    std::vector<std::uint64_t> values(block.layout.value_words());
    while (!is_over.load()) {
      if (SeqWords(block.words).try_read(values)) {
        const std::span<const std::uint64_t> all(values);
        Record engine = read_record(block.layout.engine, all.subspan(StatLayout::kEngineHeadWords));
        Record session =
            read_record(block.layout.session,
                        all.subspan(StatLayout::kEngineHeadWords + stat_words(block.layout.engine) +
                                    StatLayout::kSessionHeadWords));
        wrong += engine.numbers["packets_sent"] == session.numbers["packets_sent"] ? 0 : 1;
        reads.fetch_add(1);
      }
    }
  });
  for (int i = 0; i < 200 || reads.load() == 0; ++i) {
    transfer(world, *ends.client, *ends.server, 3000);
    publisher.publish(*left.stack, world.now);
  }
  is_over.store(true);
  reader.join();
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace harp::stat_publisher_test
