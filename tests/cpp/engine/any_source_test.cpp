// Receives that name no source: control planes and operation tables of four ranks, between which
// frames take their time, and real worlds.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/control_plane.hpp"
#include "lightcc/engine/operation_table.hpp"

#include "engine/rank_threads.hpp"

namespace lightcc::any_source_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr int kRanks = 4;
constexpr TimePoint kNow{std::chrono::hours(1)};
const std::vector<std::string> kSequences = {"", "t7"};

Operation transfer(OpType op, int peer, const std::string& sequence, std::size_t elements = 1) {
  Operation operation = bare(op);
  operation.request.signature.root_or_peer = peer;
  operation.request.signature.shape = {static_cast<std::int64_t>(elements)};
  operation.from_any = peer == kAnySource;
  operation.sequence = sequence;
  return operation;
}

// Everything of four ranks but I/O: rank 0 above 1 and 2, and rank 2 above 3. What is on its way
// arrives in any order that the links between them allow.
class Ranks {
 public:
  explicit Ranks(unsigned seed) : random_(seed) {
    constexpr std::array<int, kRanks> kParents = {-1, 0, 0, 2};
    for (int rank = 0; rank < kRanks; ++rank) {
      ControlOptions options;
      options.rank = rank;
      options.sequencer.world_size = kRanks;
      options.process_sets = ProcessSetTable(kRanks);
      options.tree_parents.assign(kParents.begin(), kParents.end());
      for (int child = 1; child < kRanks; ++child) {
        if (kParents.at(static_cast<std::size_t>(child)) == rank) {
          options.children.push_back({child, false});
        }
      }
      if (rank > 0) {
        options.parent = ControlPeer{kParents.at(static_cast<std::size_t>(rank)), false};
      }
      ranks_.push_back(std::make_unique<Rank>(std::move(options)));
    }
  }

  std::mt19937& random() { return random_; }

  Handle submit(int rank, Operation operation) {
    return at(rank).operations.add(only(std::move(operation)), Grouping::kNone).value();
  }

  // One thing that may happen next; false: there is none.
  bool step() {
    std::vector<int> movers;  // A rank that reports, or kRanks and the number of a link.
    for (int rank = 0; rank < kRanks; ++rank) {
      if (at(rank).operations.has_new()) {
        movers.push_back(rank);
      }
    }
    int number = kRanks;
    for (const auto& [ends, frames] : links_) {
      if (!frames.empty()) {
        movers.push_back(number);
      }
      ++number;
    }
    if (movers.empty()) {
      return false;
    }
    const int chosen = movers[random_() % movers.size()];
    if (chosen < kRanks) {
      Rank& rank = at(chosen);
      for (const InFlight* operation : rank.operations.take_new()) {
        rank.control.submit(operation->operation.request,
                            *operation->key,
                            std::bit_cast<OperationToken>(operation));
      }
      move(chosen);
      return true;
    }
    auto& [ends, frames] = *std::next(links_.begin(), chosen - kRanks);
    Frame frame = std::move(frames.front());
    frames.pop_front();
    at(ends.second).control.on_frame(link_to(ends.second, ends.first), std::move(frame), kNow);
    move(ends.second);
    return true;
  }

  void settle() {
    while (step()) {
    }
  }

  // Names of the messages that ran, by the handle of either end.
  const std::string& message_of(const Handle& handle) { return messages_[handle.get()]; }

 private:
  struct Rank {
    explicit Rank(ControlOptions options)
        : operations(options.rank),
          children(options.children),
          parent(options.parent),
          control(std::move(options), kNow) {}
    OperationTable operations;
    std::vector<ControlPeer> children;
    std::optional<ControlPeer> parent;
    ControlPlane control;
  };

  Rank& at(int rank) { return *ranks_.at(static_cast<std::size_t>(rank)); }

  LinkIndex link_to(int rank, int other) {
    const auto& children = at(rank).children;
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (children[i].rank == other) {
        return static_cast<LinkIndex>(i);
      }
    }
    return kParentLink;
  }

  // Carries out what the machine of `number` says.
  void move(int number) {
    Rank& rank = at(number);
    do {
      rank.control.advance(kNow);
      for (const OutgoingFrame& out : rank.control.take_frames()) {
        if (rank.parent && out.goes_to(kParentLink)) {
          links_[{number, rank.parent->rank}].push_back(out.frame);
        }
        for (std::size_t i = 0; i < rank.children.size(); ++i) {
          if (out.goes_to(static_cast<LinkIndex>(i))) {
            links_[{number, rank.children[i].rank}].push_back(out.frame);
          }
        }
      }
      for (ControlAction& action : rank.control.take_actions()) {
        apply(rank, action);
      }
    } while (rank.control.has_output() || rank.control.wants_advance());
  }

  void apply(Rank& rank, ControlAction& action) {
    if (const auto* named = std::get_if<NameReceive>(&action)) {
      ASSERT_TRUE(
          rank.operations.name_receive(operation_of(named->operation), named->source, named->name)
              .ok());
    } else if (const auto* complete = std::get_if<CompleteOperation>(&action)) {
      rank.operations.complete(operation_of(complete->operation), complete->status, {});
    } else {
      const auto* bucket = std::get_if<RunBucket>(&action);
      ASSERT_NE(bucket, nullptr) << "the world ended";
      for (const MatchedTensor& tensor : bucket->tensors) {
        InFlight& operation = operation_of(tensor.operation);
        messages_[operation.handle.get()] = tensor.agreed->signature.name;
        EXPECT_EQ(operation.signature().name, tensor.agreed->signature.name);
        Outcome outcome;
        outcome.value = static_cast<std::int32_t>(tensor.agreed->per_member.front());
        rank.operations.complete(operation, {}, std::move(outcome));
      }
      rank.control.on_bucket_done(bucket->process_set, bucket->lane, kNow);
    }
  }

  static InFlight& operation_of(OperationToken token) { return *std::bit_cast<InFlight*>(token); }

  std::mt19937 random_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<int, int>, std::deque<Frame>> links_;  // From, to.
  std::map<const HandleState*, std::string> messages_;
};

std::string message_name(int from, int to, const std::string& sequence, int number) {
  return "sendrecv." + std::to_string(from) + "to" + std::to_string(to) +
         (sequence.empty() ? "" : "." + sequence) + ".noname." + std::to_string(number);
}

// All receives of one rank and sequence, as it asked for them.
struct Received {
  std::vector<std::pair<int, Handle>> receives;  // The source that was named.

  std::map<int, int> count_by_source() const {
    std::map<int, int> counts;
    for (const auto& [named, handle] : receives) {
      ++counts[handle->outcomes.front().value];
    }
    return counts;
  }
};

void play(unsigned seed) {
  SCOPED_TRACE(seed);
  constexpr int kMessages = 6;  // Each pair and sequence has so many.
  Ranks ranks(seed);
  struct Call {
    int rank;
    OpType op;
    int peer;
    std::size_t sequence;
  };
  std::vector<Call> calls;
  for (std::size_t sequence = 0; sequence < kSequences.size(); ++sequence) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int i = 0; i < kMessages / 2; ++i) {
        calls.push_back({rank, OpType::kRecv, kAnySource, sequence});
      }
      for (int other = 0; other < kRanks; ++other) {
        for (int i = 0; i < kMessages && other != rank; ++i) {
          calls.push_back({rank, OpType::kSend, other, sequence});
          if (i < kMessages / 2) {
            calls.push_back({rank, OpType::kRecv, other, sequence});
          }
        }
      }
    }
  }
  std::ranges::shuffle(calls, ranks.random());
  std::map<std::pair<int, std::size_t>, Received> mailboxes;
  std::vector<Handle> sends;
  const auto call = [&](const Call& c) {
    const Handle handle = ranks.submit(c.rank, transfer(c.op, c.peer, kSequences[c.sequence]));
    if (c.op == OpType::kSend) {
      sends.push_back(handle);
    } else {
      mailboxes[{c.rank, c.sequence}].receives.emplace_back(c.peer, handle);
    }
  };
  for (const Call& c : calls) {
    call(c);
    for (unsigned steps = ranks.random()() % 4; steps > 0; --steps) {
      ranks.step();
    }
  }
  ranks.settle();
  for (auto& [key, mailbox] : mailboxes) {  // What is left, by its source.
    const std::map<int, int> counts = mailbox.count_by_source();
    for (const auto& [source, count] : counts) {
      for (int i = count; i < kMessages; ++i) {
        call({key.first, OpType::kRecv, source, key.second});
      }
    }
  }
  ranks.settle();
  for (const auto& [key, mailbox] : mailboxes) {
    std::map<int, int> received;
    for (const auto& [named, handle] : mailbox.receives) {
      ASSERT_TRUE(handle->done.load());
      ASSERT_TRUE(handle->status.ok()) << handle->status.message();
      const int source = handle->outcomes.front().value;
      EXPECT_TRUE(named == kAnySource || named == source);
      EXPECT_EQ(ranks.message_of(handle),
                message_name(source, key.first, kSequences[key.second], received[source]++));
    }
    EXPECT_EQ(received.size(), static_cast<std::size_t>(kRanks - 1));
  }
  for (const Handle& send : sends) {
    EXPECT_TRUE(send->done.load() && send->status.ok());
  }
}

TEST(AnySource, no_message_overtakes_another_however_long_frames_take) {
  for (unsigned seed = 0; seed < 200 && !::testing::Test::HasFailure(); ++seed) {
    play(seed);
  }
}

TEST(AnySource, receives_fail_when_all_others_have_joined_and_numbers_go_on) {
  Ranks ranks(1);
  const Handle any = ranks.submit(3, transfer(OpType::kRecv, kAnySource, ""));
  const Handle behind = ranks.submit(3, transfer(OpType::kRecv, 1, ""));
  ranks.settle();
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.submit(rank, bare(OpType::kJoin));
    ranks.settle();
  }
  for (const Handle& handle : {any, behind}) {
    ASSERT_TRUE(handle->done.load());
    EXPECT_EQ(handle->status.code(), ErrorCode::kMismatch);
    EXPECT_NE(handle->status.message().find("RECV is not supported with Join"), std::string::npos);
  }
  const Handle receive = ranks.submit(3, transfer(OpType::kRecv, 1, ""));
  const Handle send = ranks.submit(1, transfer(OpType::kSend, 3, ""));
  ranks.settle();
  EXPECT_EQ(ranks.message_of(receive), "sendrecv.1to3.noname.0");
  EXPECT_TRUE(send->done.load() && send->status.ok());
}

TEST(AnySource, a_message_of_another_shape_fails_both_ends_alone) {
  Ranks ranks(1);
  const Handle receive = ranks.submit(2, transfer(OpType::kRecv, kAnySource, "", 5));
  const Handle send = ranks.submit(0, transfer(OpType::kSend, 2, "", 4));
  ranks.settle();
  for (const Handle& handle : {receive, send}) {
    ASSERT_TRUE(handle->done.load());
    EXPECT_EQ(handle->status.code(), ErrorCode::kMismatch);
  }
  const Handle next = ranks.submit(2, transfer(OpType::kRecv, 0, "", 4));
  ranks.submit(0, transfer(OpType::kSend, 2, "", 4));
  ranks.settle();
  EXPECT_EQ(ranks.message_of(next), "sendrecv.0to2.noname.1");
}

// Ranks that are threads, on one host and on two.
class AnySourceWorlds : public ::testing::TestWithParam<testing::JobOptions> {};

TEST_P(AnySourceWorlds, rank_0_serves_whoever_asks_first) {
  run_job(GetParam(), [&](World& world, int rank) {
    const int size = world.topology().size;
    constexpr int kQuestions = 20;
    if (rank != 0) {
      for (int i = 0; i < kQuestions; ++i) {
        std::vector<float> question(1000, static_cast<float>(100 * rank + i));
        Operation ask = operation_on(OpType::kSend, "", question);
        ask.name.reset();
        ask.request.signature.root_or_peer = 0;
        ASSERT_TRUE(run_one(world, ask).ok());
        std::vector<float> answer(1000);
        Operation hear = operation_on(OpType::kRecv, "", answer);
        hear.name.reset();
        hear.from_any = true;
        const auto heard = run_one(world, hear);
        ASSERT_TRUE(heard.ok()) << heard.status().message();
        EXPECT_EQ(heard.value()[0].value, 0);
        EXPECT_EQ(answer.back(), -question.back());
      }
    } else {
      std::vector<int> next(static_cast<std::size_t>(size));
      for (int i = 0; i < kQuestions * (size - 1); ++i) {
        std::vector<float> text(1000);
        Operation hear = operation_on(OpType::kRecv, "", text);
        hear.name.reset();
        hear.from_any = true;
        const auto heard = run_one(world, hear);
        ASSERT_TRUE(heard.ok()) << heard.status().message();
        const int source = heard.value()[0].value;
        EXPECT_EQ(text.back(),
                  static_cast<float>(100 * source + next.at(static_cast<std::size_t>(source))++));
        for (float& value : text) {
          value = -value;
        }
        Operation answer = operation_on(OpType::kSend, "", text);
        answer.name.reset();
        answer.request.signature.root_or_peer = source;
        ASSERT_TRUE(run_one(world, answer).ok());
      }
    }
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(
    ,
    AnySourceWorlds,
    ::testing::Values(on_one_host(2), on_one_host(4), on_hosts({0, 0, 1, 1}), on_hosts({0, 1, 2})));

}  // namespace
}  // namespace lightcc::any_source_test
